"""Tables of micro-benchmarks: what is read, what is set aside and why, and that the shipped ones
are sound."""

from __future__ import annotations

import gzip
import lzma

import numpy as np
import pytest

from calibration.micro import KINDS, published, read
from calibration.micro.ship import license_of, shipped, write
from dmodel.errors import InputError

MATMUL = "source,accelerator,dtype,m,n,k,tflops,time_us\n"
COLLECTIVE = (
    "source,collective,accelerator,link,n_accel,nodes,message_bytes,algbw_GBs,busbw_GBs,time_us\n"
)
ATTENTION = (
    "source,accelerator,dtype,pass,causal,batch,seq_len,n_heads,n_kv_heads,head_dim,tflops_causal,"
    "time_us\n"
)


def table(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read(path)


def test_a_good_row_of_each_kind(tmp_path):
    found = table(tmp_path, MATMUL + "me,H100-80GB,bf16,4096,4096,4096,,200\n")
    assert (
        found.kind == "matmul" and found.seconds() == pytest.approx([2e-4]) and not found.problems
    )
    found = table(tmp_path, ATTENTION + "me,A100-80GB,bf16,fwd,1,1,4096,32,8,128,100,\n")
    assert found.seconds() == pytest.approx([2.0 * 32 * 4096**2 * 128 / 100e12])
    found = table(tmp_path, COLLECTIVE + "me,all_gather,a100,NVLink,8,1,1e9,200,175,\n")
    assert found.seconds() == pytest.approx([5e-3]) and found.chips().tolist() == ["A100-80GB"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("me,H100-80GB,bf16,0,4096,4096,,200", "m: expected 1 or more"),
        ("me,H100-80GB,bf16,4096,,4096,,200", "n is blank"),
        ("me,H100-80GB,bf16,x,4096,4096,,200", "m: expected a plain number"),
        ("me,H100-80GB,bf16,64,64,64,,nan", "time_us: expected a finite number"),
        ("me,H100-80GB,bf16,64,64,64,,-1", "time_us: expected a positive number"),
        ("me,H100-80GB,bf16,64,64,64,,", "neither time_us nor tflops"),
        ("me,H100-80GB,bf16,4096,4096,4096,900,200", "one of them is wrong"),
        ("me,Z9000,bf16,64,64,64,,1", "the catalog has no 'Z9000'"),
        ("me,A100-80GB,fp8,64,64,64,,1", "A100-80GB has bf16"),
        ("me,H100-80GB,bf16,64,64", "5 fields where the header has 8"),
    ],
)
def test_a_bad_row_is_set_aside_with_its_reason_and_the_rest_is_used(tmp_path, row, reason):
    found = table(tmp_path, MATMUL + row + "\nme,H100-80GB,bf16,4096,4096,4096,,200\n")
    assert len(found.rows) == len(found.aside) == len(found.problems) == 1
    assert reason in str(found.problems[0]) and f"{tmp_path / 'table.csv'}:2:" in str(
        found.problems[0]
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("me,moe_dispatch,H800,IB,16,2,1e6,,,20", "collective: expected one of"),
        ("me,all_gather,H100-80GB,IB,9,2,1e6,,,20", "n_accel 9 on 2 nodes"),
        ("me,all_gather,H100-80GB,IB,16,2,,,,20", "message_bytes is blank"),
    ],
)
def test_a_bad_collective(tmp_path, row, reason):
    found = table(tmp_path, COLLECTIVE + row + "\n")
    assert not found.rows and reason in found.problems[0].reason


def test_a_bad_attention_row(tmp_path):
    found = table(
        tmp_path,
        ATTENTION
        + "me,A100-80GB,bf16,bwd,1,1,64,8,8,64,,5\nme,A100-80GB,bf16,fwd,1,1,64,8,3,64,,5\n",
    )
    assert [p.line for p in found.problems] == [2, 3]
    assert (
        "pass: expected fwd" in found.problems[0].reason
        and "no multiple of n_kv_heads" in found.problems[1].reason
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "of no known kind"),
        (b"m,n,k,dtype\n", "missing columns of a matmul table: source, accelerator, time_us"),
        (MATMUL.encode(), "a header but no rows"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (gzip.compress(MATMUL.encode() * 9, mtime=0)[:20], "cannot be read as text"),
        (lzma.compress(MATMUL.encode() * 9)[:60], "cannot be read as text"),
        (b"\x1f\x8b\x08" + bytes(30), "cannot be read as text"),
        (lzma.compress(MATMUL.encode())[:12] + bytes(60), "cannot be read as text"),
    ],
)
def test_a_file_that_is_no_table(tmp_path, content, reason):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.csv")


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_rows_are_all_usable_and_say_where_they_come_from(kind):
    found = published(kind)
    assert not found.problems and len(found.rows) > 2000
    assert all(row.text("license") == license_of(row.text("source")) != "" for row in found.rows)
    assert (found.seconds() > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_reads_back(kind, tmp_path):
    found = published(kind)
    few = found.select([i < 200 for i in range(len(found.rows))])
    write(tmp_path / "few.csv.xz", kind, [shipped(kind, row) for row in few.rows])
    again = read(tmp_path / "few.csv.xz")
    assert again.columns == few.columns and [r.cells for r in again.rows] == [
        r.cells for r in few.rows
    ]
    np.testing.assert_array_equal(again.seconds(), few.seconds())


def test_a_table_packed_by_gzip_is_read_too(tmp_path):
    row = "me,H100-80GB,bf16,4096,4096,4096,,200\n"
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress((MATMUL + row).encode()))
    assert read(tmp_path / "table.csv.gz").seconds() == pytest.approx([2e-4])


def test_a_row_without_a_licence_is_not_shipped(tmp_path):
    found = table(tmp_path, MATMUL + "somebody's blog,H100-80GB,bf16,4096,4096,4096,,200\n")
    assert shipped("matmul", found.rows[0]) == {}
