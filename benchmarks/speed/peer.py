"""What an engineer would write in an afternoon: the same files with gzip, json, pandas and scipy.stats, a Welch test each.

It takes no account of blocks, warm-up, damaged files or multiple testing; it is here to say what reading costs anyway.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats


def read(folder: Path) -> pd.DataFrame:
    rows = []
    for line in (folder / "windows.jsonl").read_text().splitlines():
        place = json.loads(line)
        with gzip.open(folder / place["file"], "rt") as file:
            run = json.loads(file.readline())
        itl = np.concatenate([np.asarray(one) for one in run["itls"]]) * 1e3
        worst = np.sort(itl)[-len(itl) // 20 :]
        rows.append(
            {
                "arm": place["arm"],
                "role": place["role"],
                "throughput": run["output_throughput"],
                "median_itl": np.median(itl),
                "p95_itl": np.percentile(itl, 95),
                "p99_itl": np.percentile(itl, 99),
                "es5_itl": worst.mean(),
                "mean_ttft": np.mean(run["ttfts"]) * 1e3,
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    frame = read(Path(sys.argv[1]))
    judged = frame[frame["role"] == "measured"]
    for metric in frame.columns[2:]:
        base, candidate = (judged.loc[judged["arm"] == arm, metric] for arm in ("base", "candidate"))
        change = candidate.mean() / base.mean() - 1
        print(f"{metric:12} {change:+.2%}  p = {stats.ttest_ind(base, candidate, equal_var=False).pvalue:.3f}")


if __name__ == "__main__":
    main()
