"""When a server counts as warm and a window as stalled."""

from __future__ import annotations

from math import log

from perfgate.stats.steady import find_stalled, is_steady


def _window(slow: float, **others: float):
    names = ("output_tok_per_s", "mean_itl_ms", "mean_e2e_ms")
    return {**dict.fromkeys(names, log(1 + slow)), **others}


def test_is_steady__a_cold_first_window_then_two_that_agree():
    assert is_steady([_window(1.2), _window(0.0), _window(0.02)], 0.03, {})


def test_is_steady__drifting_all_the_way():
    assert not is_steady([_window(0.3), _window(0.2), _window(0.1)], 0.03, {})


def test_is_steady__one_of_two_metrics_is_not_enough():
    assert not is_steady([_window(0.0), _window(0.0, mean_itl_ms=log(1.1))], 0.03, {})


def test_is_steady__a_noisy_machine_may_differ_by_five_deviations():
    noise = {"output_tok_per_s": 0.03, "mean_itl_ms": 0.03}

    assert is_steady([_window(0.0), _window(0.14)], 0.03, noise)
    assert not is_steady([_window(0.0), _window(0.16)], 0.03, noise)


def test_is_steady__without_either_metric_nothing_is_known():
    assert not is_steady([{}, {}], 0.03, {})


def test_find_stalled__five_deviations_slow_on_average():
    windows = [_window(0.0), _window(0.001), _window(0.06)]

    assert find_stalled(windows, 0.03, dict.fromkeys(windows[0], 0.01)) == 2
    assert find_stalled(windows, 0.03, dict.fromkeys(windows[0], 0.02)) is None


def test_find_stalled__a_fast_window_has_not_stalled():
    assert find_stalled([_window(0.0), _window(0.0), _window(-0.5)], 0.03, {}) is None


def test_find_stalled__a_start_that_is_slow_throughout_flags_nothing():
    assert find_stalled([_window(0.5), _window(0.501), _window(0.502)], 0.03, {}) is None


def test_find_stalled__nothing_to_go_by():
    assert find_stalled([{}, {}], 0.03, {}) is None


def test_is_steady__windows_that_are_the_same_agree_without_any_tolerance():
    assert is_steady([_window(0.1), _window(0.1)], 0.0, {})


def test_find_stalled__without_stored_noise_the_tolerance_is_five_deviations():
    assert find_stalled([_window(0.0), _window(0.0), _window(0.06)], 0.03, {}) == 2


def test_find_stalled__five_deviations_and_no_more_is_no_stall():
    windows = [dict.fromkeys(_window(0.0), value) for value in (0.0, 0.0, 0.05)]

    assert find_stalled(windows, 0.0, dict.fromkeys(windows[0], 0.01)) is None
    assert find_stalled([*windows[:2], dict.fromkeys(windows[0], 0.0501)], 0.0, dict.fromkeys(windows[0], 0.01)) == 2


def test_is_steady__what_one_window_lacks_is_not_compared():
    assert is_steady([_window(0.0), {"output_tok_per_s": 0.0}], 0.03, {})
    assert is_steady([{"output_tok_per_s": 0.0}, _window(0.0)], 0.03, {})


def test_find_stalled__the_first_of_a_start():
    assert find_stalled([_window(0.06), _window(0.0), _window(0.0)], 0.03, {}) == 0
