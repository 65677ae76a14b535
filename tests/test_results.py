"""Result tables survive a round trip; sweeps resume and survive torn files."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from icl_core import results

calls = []


def square(x):
    calls.append(x)
    return {"x": x, "y": np.float64(x) ** 2}


def test_table_round_trip(tmp_path):
    note = results.provenance({"K": np.int64(4), "theta": np.array([0.0, 1.0])}, seed=7, command="icl-core run x")
    table = results.Table(pd.DataFrame({"x": [0.1, 1 / 3]}), note, {"x": "a number"})
    path = results.write_table(tmp_path / "deep" / "t", table)
    again = results.read_table(path)
    pd.testing.assert_frame_equal(again.frame, table.frame)
    assert again.provenance["parameters"] == {"K": 4, "theta": [0.0, 1.0]}
    assert again.provenance["seed"] == 7
    assert again.provenance["versions"]["torch"]
    assert again.columns == {"x": "a number"}
    assert not list((tmp_path / "deep").glob("*.part"))


def test_missing_and_newer_tables_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no result table at .*nothing\.csv"):
        results.read_table(tmp_path / "nothing")
    path = results.write_table(tmp_path / "t", results.Table(pd.DataFrame({"x": [1]}), {"schema": 99}))
    with pytest.raises(ValueError, match="has schema 99, expected 1"):
        results.read_table(path)


def test_sweep_keeps_resumes_and_mends(tmp_path):
    store = tmp_path / "sweep.jsonl"
    points = [{"x": i} for i in range(4)]
    calls.clear()
    first = results.sweep(square, points[:2], store=store)
    assert first == [{"x": 0, "y": 0.0}, {"x": 1, "y": 1.0}]
    with store.open("a") as lines:
        lines.write('{"key": "torn')
    again = results.sweep(square, points, store=store)
    assert [r["y"] for r in again] == [0.0, 1.0, 4.0, 9.0]
    assert calls == [0, 1, 2, 3]
    assert results.sweep(square, points, store=store) == again
    assert calls == [0, 1, 2, 3]


def test_sweep_takes_any_executor(tmp_path, capsys):
    with ThreadPoolExecutor(2) as pool:
        found = results.sweep(square, [{"x": i} for i in range(5)], executor=pool, progress=True)
    assert [r["x"] for r in found] == list(range(5))
    assert "[5/5]" in capsys.readouterr().err


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match="cannot store object"):
        results.provenance({"x": object()})
