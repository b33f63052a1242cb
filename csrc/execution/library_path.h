// What the executor leaves to a library of collectives: operations of OpSpec::mpi.
//
// Such a library matches collectives by the order in which they are called on a communicator, and the
// engine's operations have none. So their ranks first meet, as for any operation of the engine, by empty
// messages up a tree to the communicator's first member. When all have come, that member gives the
// operation its issue number (kNumber), which goes down the tree, and each member calls the library
// (kLibrary) in the order of these numbers. An operation has a number only once it has come everywhere, so
// a number that a member waits for belongs to an operation that waits for nothing but a message on its way:
// the order holds nobody up. engine/library_operations.h implements it.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// The first member gives one to each operation.
struct IssueNumber {
  uint64_t number = 0;          // its place among the operations that the library does on the communicator
  uint64_t communicator = 0;    // CollectiveLibrary::MakeCommunicator's id; all operations have the same one
};

// All members need the engine's lock.
class LibraryPath {
 public:
  // A task of the library's has become ready: its TransferDone is told when it is over.
  virtual void Start(Operation* op, TaskId task) = 0;
  // What the library has not begun of the operation ends now, with an error.
  virtual void OnFailed(Operation* op) = 0;
  // Whether the library has begun it and may touch its memory.
  virtual bool IsRunning(const Operation& op) const = 0;
  // The library is called no more, and all that it has begun ends with this.
  virtual void Freeze(const Status& why) = 0;

 protected:
  ~LibraryPath() = default;
};

}  // namespace jaxccomp
