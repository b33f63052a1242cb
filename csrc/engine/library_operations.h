// Calls a library of collectives in the order of issue numbers, and advances its operations (execution/library_path.h).
//
// The first operation on a communicator of the engine makes a communicator of the library with the same ranks.
// Libraries have no reversed scan, so the first reversed scan makes a second one with the ranks in reverse order.
// Making a communicator blocks until all ranks take part. They do, because an operation gets its number only after
// all ranks have begun it. A separate thread makes the communicator, so that no thread of the engine or of XLA blocks.
// Numbered operations wait until the communicator is made.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "execution/collective_library.h"
#include "execution/executor.h"
#include "execution/library_path.h"

namespace jaxccomp {

// All members need the engine's lock.
class LibraryOperations final : public LibraryPath {
 public:
  explicit LibraryOperations(Executor* executor) { executor->SetLibraryPath(this); }

  // This is `process` of a world of `processes`.
  void Use(std::unique_ptr<CollectiveLibrary> library, int process, int processes) {
    library_ = std::move(library);
    process_ = process;
    processes_ = processes;
  }
  // OK, or why the library cannot run the call.
  Status Check(const OpSpec& spec, const Communicator& comm) const;

  // Advances all operations. Returns whether it has done anything.
  bool Poll();
  // Whether the library has open work that only Poll advances.
  bool HasRunning() const { return !running_.empty() || creations_ > 0; }

  // LibraryPath
  void Start(Operation* op, TaskId task) override;
  void OnFailed(Operation* op) override;
  bool IsRunning(const Operation& op) const override;
  void Quiesce(const Status& why) override;

 private:
  // An operation that has its issue number and waits for its turn.
  struct NumberedOperation {
    Operation* op;
    TaskId task;
  };
  // A communicator of the library while it is being made, shared with the thread that makes it.
  struct Creation {
    std::mutex mutex;
    bool over = false;
    Result<CollectiveLibrary::Communicator> made{Status(Code::kInternal, "not made")};
  };
  // One of the library's communicators.
  struct LibraryCommunicator {
    std::shared_ptr<Creation> creation;      // null: not begun
    bool ready = false;                  // `communicator` is valid
    CollectiveLibrary::Communicator communicator = 0;
  };
  struct CommunicatorState {
    std::optional<uint64_t> id;          // IssueNumber::communicator
    uint64_t numbered = 0;               // at the first member: number of operations numbered so far
    uint64_t next = 0;                   // the next number to begin
    std::map<uint64_t, NumberedOperation> queue;         // by number
    LibraryCommunicator by_direction[2];                       // members in order, and in reverse order
  };
  // An operation that the library has begun. The library calls Done for each tensor.
  struct Running final : Completion {
    LibraryOperations* owner = nullptr;
    NumberedOperation operation{};
    size_t left = 0;
    Status status;
    void Done(Status status) override;
  };

  void Advance(const Communicator& comm, CommunicatorState& state);
  // Starts to make one of the library's communicators.
  void Make(const Communicator& comm, CommunicatorState& state, bool reverse);
  // Returns an id for a new communicator, different from the ids of all other processes. The id plus 1 is for the
  // communicator with the ranks in reverse order.
  uint64_t NextId();
  // Takes the communicator if it has been made, and begins the operations that wait for it. Returns false if not.
  bool TakeMade(const Communicator& comm, CommunicatorState& state, LibraryCommunicator& target);
  void Begin(const LibraryCommunicator& target, NumberedOperation next);
  void End(Running* running);

  std::shared_ptr<CollectiveLibrary> library_;   // null if there is none
  int process_ = 0, processes_ = 1;
  uint64_t ids_ = 0;                             // number of calls of NextId
  Status quiesced_;
  std::map<const Communicator*, CommunicatorState> states_;
  int creations_ = 0;                               // communicators that are being made
  std::list<Running> running_;
};

}  // namespace jaxccomp
