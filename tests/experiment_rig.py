"""What experiments print, as patterns; and a cell run the way a front end does."""

import re

STATE = (
    r"\n\*\*\* Current state:\n"
    r"RAM: +Used +Free +Total +Util\n"
    r"CPU: +(?P<used>[\d,]+) +(?P<free>[\d,]+) +(?P<total>[\d,]+) MB +(?P<util>\d+\.\d\d)% \n"
)
STARTED = re.compile(r"\n\*\*\* Experiment started with the CPU-only backend\n\n" + STATE + r"\n\n")
FINISHED = re.compile(
    r"\n\w+: Finishing\n"
    r"\n\*\*\* Experiment finished in (?P<elapsed>\d\d:\d\d:\d\d) \(elapsed wallclock time\)\n"
    r"(?:\n\*\*\* Newly defined local variables:\n"
    r"(?:Deleted: (?P<deleted>.+)\n)?(?:Failed to delete: (?P<failed>.+)\n)?(?:Kept:    (?P<kept>.+)\n)?)?"
    r"(?:\n\*\*\* Circular ref objects gc collected during the experiment:\n"
    r"cleared (?P<cleared>\d+) objects \(only temporary leakage\)\n)?"
    r"(?:\n\*\*\* Potential memory leaks during the experiment:\n"
    r"uncollected gc.garbage of (?P<garbage>\d+) objects\n)?"
    r"\n\*\*\* Experiment memory:\n"
    r"RAM: Consumed       Reclaimed\n"
    r"CPU: +(?P<consumed>-?[\d,]+) +(?P<reclaimed>-?[\d,]+) MB \((?P<share>[ \d.-]+%|    n/a)\)\n"
    + STATE
    + r"\n\n"
)
REPORT = re.compile(
    r"･ RAM:  △Consumed    △Peaked    Used Total \| Exec time \d:\d\d:\d\d\.\d{3}\n"
    r"･ CPU: (?P<consumed>[ \d,-]{10}) (?P<peaked>[ \d,]{10}) [ \d,]{10} MB \|(?P<after>.*)\n"
)


def run(shell, code, **how):
    """Run a cell the way a front end does."""
    return shell.run_cell(code, store_history=True, **how)
