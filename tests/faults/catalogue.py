"""All seeded faults, and which of them are long."""

from tests.faults.engine import ENGINE
from tests.faults.fault import Fault
from tests.faults.kinds.broken import BROKEN
from tests.faults.kinds.same import SAME
from tests.faults.kinds.served import SERVED
from tests.faults.kinds.sick import SICK
from tests.faults.kinds.sick_recorded import SICK_RECORDED
from tests.faults.kinds.slow import SLOW
from tests.faults.kinds.stopped import STOPS
from tests.faults.kinds.wrong import WRONG

FAULTS: tuple[Fault, ...] = (*SLOW, *WRONG, *BROKEN, *SICK_RECORDED, *SICK, *STOPS, *SERVED, *ENGINE, *SAME)
