// The calls on devices that are not over, and that their callers wait for: a thread of the host, or a stream.
//
// It has a lock of its own. So callers can be let go also while the thread that holds the engine's lock is
// blocked in a call of CUDA or MPI (engine/lock_watch.h). A caller is let go only if nothing is writing to its
// memory: whatever is started for a call asks first, and nothing is started any more for one that has been
// let go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/status.h"
#include "device/device.h"

namespace jaxccomp {

struct Operation;

class WaitingCalls {
 public:
  using Id = uint64_t;

  // With the engine's lock.

  // Before the device is asked to enter the call.
  Id Add(Operation* op, Device* device);
  // What the device calls it. Its caller's stream may stand from now on.
  void SetEntered(Id id, Device::CallId call);
  // What tells the thread that waits for it: `done`, but only the first time that it is called.
  std::function<void(Status)> SetDone(Id id, const std::function<void(Status)>& done);
  // Something is about to be started for the call, and `writes` to its caller's memory until End. False: the
  // call has been let go, and nothing may be started.
  bool Begin(Id id, bool writes);
  void End(Id id);
  void Remove(Id id);
  bool IsLetGo(Id id) const;
  // A call that has been let go, and why, each once; null when there is none.
  std::pair<Operation*, Status> NextLetGo();

  // By any thread.

  bool empty() const;
  struct Counts {
    int64_t let_go = 0;
    int64_t written = 0;   // to whose caller's memory something may still write
  };
  // The callers that nothing writes for go on; those that are threads hear why.
  Counts LetGo(const Status& why);

 private:
  struct Call {
    Operation* op;
    Device* device;
    std::string text;
    Device::CallId entered = Device::kNoCall;
    std::function<void(Status)> done;
    int64_t writers = 0;
    bool let_go = false, told = false;
    Status why;
  };

  mutable std::mutex mutex_;
  std::map<Id, Call> calls_;
  Id next_ = 1;
  int64_t untold_ = 0;   // calls that NextLetGo has to give
};

}  // namespace jaxccomp
