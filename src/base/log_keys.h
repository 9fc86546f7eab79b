/* log_keys.h - the names of log fields that operators search for, as the original has them. Others
 * are free, and local to their message. */
#pragma once

#define LK_SANDBOX_ID "sandbox-id"
#define LK_POD_ID "pod-id"
#define LK_CID "cid" /* a container */
#define LK_EID "eid" /* an exec in it */
#define LK_PID "pid"
#define LK_UVM_ID "uvm-id" /* the VM */
#define LK_OPERATION "operation"
#define LK_CONTROLLER "controller"
#define LK_LUN "lun"
#define LK_HOST_PATH "host-path"
#define LK_UVM_PATH "uvm-path"
#define LK_EXIT_STATUS "exit-status"
#define LK_DURATION "duration"
#define LK_ERROR "error"
#define LK_REASON "reason" /* see base/reason.h */
