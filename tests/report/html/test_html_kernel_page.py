"""The page of one kernel: its answer, why it is wrong, its errors, its time beside its peers."""

from perfgate.readers.layer_timings import LayerCurve, LayerPoint
from perfgate.report.html.kernel_page import KernelCase, KernelReport, build_kernel_page
from perfgate.report.html.page import render_page

SOUND = KernelCase(case="E=8,k=4,H=64,I=96,M=1,dtype=bfloat16", error=2.5e-3, share=0.6)
WORSE = KernelCase(case="E=8,k=4,H=64,I=96,M=2,dtype=bfloat16", error=2.1e-3, share=0.9)
WRONG = KernelCase(case="E=8,k=4,H=64,I=96,M=3,dtype=bfloat16", problems=("relative error 0.7 > 0.0042",), error=0.7, share=9.0)
LEFT = KernelCase(case="E=8,k=4,H=64,I=96,M=3,dtype=float32", left_out="16 bits only")
DIAGNOSIS = "The router weight is applied before the activation instead of after the second product."
CURVE = LayerCurve(
    shape="gpt-oss-20b",
    points=tuple(
        LayerPoint(tokens=count, floor_us=40.0, samples_us={"peer:layer": (90.0, 100.0, 110.0), "sglang": (80.0, 80.0, 80.0)})
        for count in (1, 16)
    ),
)


def report(*cases, **more):
    return KernelReport(implementation="peer:layer", device="NVIDIA H200", cases=cases, **more)


def find_section(page, name):
    return next(section for section in page.sections if section.name == name)


def test_build_kernel_page__a_wrong_kernel_says_why_first():
    page = build_kernel_page(report(SOUND, WRONG, LEFT, diagnosis=DIAGNOSIS))

    assert (page.answer, page.style) == ("WRONG", "regression")
    assert page.meaning == "1 of 2 cases are right against the float64 oracle"
    assert page.reasons == (DIAGNOSIS, f"{WRONG.case}: relative error 0.7 > 0.0042")
    assert [section.name for section in page.sections] == ["wrong", "errors", "left-out", "reproduce"]
    ((_, command),) = find_section(page, "reproduce").parts[0].lines
    assert command == f"perfgate kernels check --impl peer:layer --case {WRONG.case}"


def test_build_kernel_page__a_right_kernel_with_times_beside_its_peers():
    page = build_kernel_page(report(SOUND, WORSE, curve=CURVE, untimed={"vllm, M = 1": "no vLLM is installed"}))

    assert (page.answer, page.style, page.reasons) == ("RIGHT", "pass", ())
    assert [row[0].text for row in find_section(page, "errors").parts[0].rows] == [WORSE.case, SOUND.case]
    assert [section.name for section in page.sections] == ["errors", "layers", "untimed", "reproduce"]
    told = render_page(page).decode()
    assert "peer:layer, M=1: 100.0 us" in told
    assert "of the roofline" in told
    assert "no vLLM is installed" in told


def test_build_kernel_page__nothing_was_covered():
    page = build_kernel_page(report(LEFT))

    assert (page.answer, page.style) == ("NOT COVERED", "inconclusive")
    assert page.meaning == "0 of 0 cases are right against the float64 oracle"
    assert "16 bits only" in render_page(page).decode()
