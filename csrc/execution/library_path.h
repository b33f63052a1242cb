// Interface by which the executor runs operations with a library of collectives (OpSpec::mpi).
//
// Such a library matches collectives by the order of calls on a communicator, and the engine's operations have no
// order. So each member reports by an empty message up a tree that it has begun the operation. When all members have
// reported, the communicator's first member, the root, gives the operation its issue number (kNumber), and sends the
// number down the tree. Each member calls the library (kLibrary) in the order of these numbers. An operation gets a
// number only after all members have begun it. So a member whose library calls wait for a smaller number waits only for
// messages in transit, and the order cannot deadlock. engine/library_operations.h implements this interface.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// The message that the first member sends down the tree.
struct IssueNumber {
  uint64_t number = 0;          // position among the communicator's operations that the library runs
  uint64_t communicator = 0;    // id for CollectiveLibrary::MakeCommunicator, the same for all these operations
};

// All members need the engine's lock.
class LibraryPath {
 public:
  // Starts a task (kNumber or kLibrary). Calls the task's TransferDone when the task is done.
  virtual void Start(Operation* op, TaskId task) = 0;
  // Ends, with an error, the tasks of the failed operation that the library has not begun.
  virtual void OnFailed(Operation* op) = 0;
  // Whether the library has begun the operation and may touch its memory.
  virtual bool IsRunning(const Operation& op) const = 0;
  // Stops calling the library; its open tasks end with the error `why`.
  virtual void Quiesce(const Status& why) = 0;

 protected:
  ~LibraryPath() = default;
};

}  // namespace jaxccomp
