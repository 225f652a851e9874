"""All seeded faults, and which of them are long."""

from tests.faults.broken import BROKEN
from tests.faults.engine import ENGINE
from tests.faults.fault import Fault
from tests.faults.same import SAME
from tests.faults.served import SERVED
from tests.faults.sick import SICK
from tests.faults.sick_recorded import SICK_RECORDED
from tests.faults.slow import SLOW
from tests.faults.stopped import STOPS
from tests.faults.wrong import WRONG

FAULTS: tuple[Fault, ...] = (*SLOW, *WRONG, *BROKEN, *SICK_RECORDED, *SICK, *STOPS, *SERVED, *ENGINE, *SAME)
