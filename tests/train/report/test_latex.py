"""The table for a paper: every character as it is, groups apart, the best bold."""

from train.report.render import Table, render_latex


def test_a_table():
    table = Table(
        ("", "AUROC [95%]"),
        [("lstm_solo", ".9"), ("a&b", ".8"), ("entropy", "–")],
        groups={0: "detectors", 2: "baselines"},
        best=frozenset({(0, 1)}),
    )
    assert render_latex(table, "On 50% of x_y").splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{On 50\% of x\_y}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r" & AUROC [95\%] \\",
        r"\midrule",
        r"\multicolumn{2}{l}{\emph{detectors}} \\",
        r"lstm\_solo & \textbf{.9} \\",
        r"a\&b & .8 \\",
        r"\midrule",
        r"\multicolumn{2}{l}{\emph{baselines}} \\",
        r"entropy & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_special_characters_are_texts():
    text = render_latex(Table(("x",), [("\\{}$#^~",)]), "")
    assert r"\textbackslash{}\{\}\$\#\textasciicircum{}\textasciitilde{}" in text
