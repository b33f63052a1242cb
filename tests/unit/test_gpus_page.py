"""The time bound in docs/gpus.md: its table matches its formula."""

import pathlib

PAGE = pathlib.Path(__file__).parents[2] / "docs/gpus.md"
BEGIN = "<!-- tests/unit/test_gpus_page.py -->\n"
PART, ENCODE, DECODE, PCIE = 4 << 20, 0.45e12, 0.5e12, 50e9  # bytes, and bytes per second
NETWORKS = {"100 Gbit/s": 12.5e9, "1 Gbit/s": 125e6}
OPERANDS = {"64 MiB": 64 << 20, "1 GiB": 1 << 30}


def seconds(count, network, part=PART):
    """Returns the time of an operand, sent in parts."""
    hidden = count * max(1 / ENCODE, 1 / PCIE, 1 / network)
    return hidden + part / ENCODE + part / DECODE + 2 * part / PCIE


def table():
    lines = [
        "| network | operand | network alone | in parts | more than the network alone "
        "| all in one part |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for network, rate in NETWORKS.items():
        for operand, count in OPERANDS.items():
            alone, parts, whole = count / rate, seconds(count, rate), seconds(count, rate, count)
            lines.append(
                f"| {network} | {operand} | {alone * 1e3:.2f} ms | {parts * 1e3:.2f} ms "
                f"| {parts / alone - 1:.2%} | {whole * 1e3:.2f} ms |"
            )
    return "\n".join(lines) + "\n"


def test_table_of_the_page_matches_the_formula():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition("<!-- end -->")[0]
    assert shown == table()


def test_claims_of_the_page_follow_from_the_formula():
    assert round(ENCODE / NETWORKS["100 Gbit/s"]) == 36
    assert all(
        seconds(count, rate) < 1.04 * count / rate
        for count in OPERANDS.values()
        for rate in NETWORKS.values()
    )
