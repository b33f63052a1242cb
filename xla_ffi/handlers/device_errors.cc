#include "handlers/device_errors.h"

#include <atomic>

#include "engine/engine.h"

namespace jaxccomp {
namespace {

std::atomic<bool> any_started{false}, any_returned{false};

}  // namespace

void NoteDeviceCall(const Status& started) { (started.ok() ? any_started : any_returned) = true; }

DeviceError FindDeviceError() {
  if (!any_started || Engine::Find() == nullptr) return {};
  return {Engine::Find()->FirstError(), any_returned};
}

}  // namespace jaxccomp
