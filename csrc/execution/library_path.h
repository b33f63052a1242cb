// Interface by which the executor runs operations with a library of collectives (OpSpec::mpi).
//
// Such a library matches collectives by the order of calls on a communicator, and the engine's operations have no
// order. So the ranks of an operation first meet by empty messages up a tree to the communicator's first member. When
// all have come, that member gives the operation its issue number (kNumber), which goes down the tree. Each member
// calls the library (kLibrary) in the order of these numbers. An operation gets a number only after it has begun
// everywhere. So a member that waits for a number waits only for a message in transit, and the order cannot deadlock.
// engine/library_operations.h implements this.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// The first member gives one to each operation.
struct IssueNumber {
  uint64_t number = 0;          // position among the communicator's operations by the library
  uint64_t communicator = 0;    // CollectiveLibrary::MakeCommunicator's id, the same for all operations
};

// All members need the engine's lock.
class LibraryPath {
 public:
  // Starts a task of the library. Its TransferDone is called when the task is over.
  virtual void Start(Operation* op, TaskId task) = 0;
  // Ends the tasks of the operation that the library has not begun, with an error.
  virtual void OnFailed(Operation* op) = 0;
  // Whether the library has begun the operation and may touch its memory.
  virtual bool IsRunning(const Operation& op) const = 0;
  // Stops calling the library; its open tasks end with the error `why`.
  virtual void Freeze(const Status& why) = 0;

 protected:
  ~LibraryPath() = default;
};

}  // namespace jaxccomp
