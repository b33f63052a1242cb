// What the backend keeps of each rank's place in a communicator, and of each GPU.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "nccl/communicator.h"
#include "nccl/meeting.h"
#include "nccl/operation.h"

namespace jaxccomp::nccl {

// An operation that has been queued. Between its events it is under way on the device.
struct Queued {
  void* before = nullptr;
  void* after = nullptr;
  std::string text;
  bool begun = false;
  std::chrono::steady_clock::time_point begun_at;
  double asks_after = 0.5;           // seconds under way, then twice as many
};

// A rank's place among those that share an NCCL communicator: the members of the engine's, or two of
// them that send each other messages.
struct Team {
  uint64_t communicator = 0;         // the engine's
  Seat seat;
  std::vector<std::string> names;    // of the ranks, for errors
  void* context = nullptr;

  std::mutex joining;                // held while ranks meet
  std::set<uint64_t> agreed;         // programs whose ranks have met
  std::unique_ptr<Communicator> comm;   // set once, while `joining` is held

  std::mutex mutex;                  // of what follows
  std::deque<Queued> queued;         // the oldest first
  std::vector<void*> events;         // for further use
  Status broken;

  // The events of an operation may be used again. With `mutex`.
  void Release(const Queued& operation) {
    for (void* event : {operation.before, operation.after}) {
      if (event != nullptr) events.push_back(event);
    }
  }
};

// A GPU: NCCL's operations run on it one after the other, whichever stream they are queued on.
struct Lane {
  std::mutex mutex;
  void* last_stream = nullptr;
  void* event = nullptr;             // behind the last operation
};

}  // namespace jaxccomp::nccl
