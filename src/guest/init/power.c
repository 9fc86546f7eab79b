#include "guest/init/power.h"
#include "base/err.h"
#include <errno.h>
#include <sys/reboot.h>

int power_off(struct err *err)
{
    reboot(RB_POWER_OFF);
    return err_sys(err, errno, "power off");
}
