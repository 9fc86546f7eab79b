"""Results of a test, in the Test Anything Protocol."""

import sys


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def check(self, good, name, detail=""):
        self.count += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}", flush=True)
        if not good and detail:
            print("\n".join("# " + line for line in detail.splitlines()))

    def require(self, good, name, detail=""):
        """A check that all further checks depend on."""
        self.check(good, name, detail)
        if not good:
            sys.exit("Bail out! " + name)

    def finish(self):
        """The exit code."""
        print(f"1..{self.count}")
        return 1 if self.failed else 0
