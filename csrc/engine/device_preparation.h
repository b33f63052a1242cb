// A codec's first operation on a device, before which the device prepares it.
//
// It may wait for all of the device meanwhile, and so for callers' streams that stand in front of a
// call: only while there is none. So the caller's thread waits here until the calls before its own are
// over. They come before it in its stream anyway, and threads of the engine end them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "engine/state.h"
#include "matching/program.h"

namespace jaxccomp {

// All members need the engine's lock, and may give it up meanwhile.
class DevicePreparation {
 public:
  // `needs_progress`: operations have to end while nobody drives them.
  DevicePreparation(EngineState* state, std::function<void()> needs_progress)
      : state_(*state), needs_progress_(std::move(needs_progress)) {}

  // Ok once `call`'s device is prepared for the site's codec, and nobody is preparing it for another one.
  Status Prepare(CallSite& site, const Call& call, std::unique_lock<std::mutex>& lock);

 private:
  using Clock = EngineState::Clock;

  Status Prepare(const CallSite& site, Device* device, DType dtype, std::unique_lock<std::mutex>& lock);

  EngineState& state_;
  const std::function<void()> needs_progress_;
  std::set<const Device*> preparing_;   // nothing is entered there
  std::condition_variable wake_;
};

}  // namespace jaxccomp
