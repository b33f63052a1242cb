// Errors of calls on devices, which end after their handlers have returned.
#pragma once

#include "common/status.h"

namespace jaxccomp {

// A handler started a call on a device, or returns this error to XLA.
void NoteDeviceCall(const Status& started);

struct DeviceError {
  Status status;           // why a communicator broke; Ok while no call on a device was made
  bool returned = false;   // whether a handler has returned an error, which XLA raises
};
DeviceError FindDeviceError();

}  // namespace jaxccomp
