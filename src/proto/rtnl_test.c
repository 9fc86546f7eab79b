#include "proto/rtnl.h"
#include "harness/tap.h"
TEST(x){ASSERT(1);}
