"""A file system whose server never answers: whoever looks into it waits, as with a dead NFS.

    path = deadfs.Dead(t).path   # below it everything hangs, until the test ends
"""

import os

import cell


class Dead:
    def __init__(self, t):
        self.path = os.path.join(t.work, "dead")
        os.mkdir(self.path)
        self._fd = os.open("/dev/fuse", os.O_RDWR)
        cell.mount("dead", self.path, "fuse", 0,
                   f"fd={self._fd},rootmode=40000,user_id=0,group_id=0")
        t.at_end(self.end)

    def end(self):
        """Everybody who waits gets an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            cell.umount(self.path)
