// The order in which a library of collectives is called, and how its operations go on
// (execution/library_path.h).
//
// Each communicator has one of the library's, of the same ranks, from its first such operation on, and another
// one, of the ranks in reverse order, from its first reversed scan on, which libraries do not have. To make one
// waits for the other ranks, which have all come to that operation; a thread of its own does it, so no
// thread of the engine or of XLA waits. Operations that have their numbers meanwhile wait for it.
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

  // `process` of a world of `processes`.
  void Use(std::unique_ptr<CollectiveLibrary> library, int process, int processes) {
    library_ = std::move(library);
    process_ = process;
    processes_ = processes;
  }
  // Why that call cannot be made; Ok when it can, as far as the library is concerned.
  Status Check(const OpSpec& spec, const Communicator& comm) const;

  // Goes on with whatever can. True when anything was done.
  bool Poll();
  // Whether the library has anything under way that only Poll moves along.
  bool HasRunning() const { return !running_.empty() || making_ > 0; }

  // LibraryPath
  void Start(Operation* op, TaskId task) override;
  void OnFailed(Operation* op) override;
  bool IsRunning(const Operation& op) const override;
  void Freeze(const Status& why) override;

 private:
  // An operation that is due has its number, and has not begun.
  struct Due {
    Operation* op;
    TaskId task;
  };
  // The library's communicator while it is being made; also of the thread that makes it.
  struct Making {
    std::mutex mutex;
    bool over = false;
    Result<CollectiveLibrary::Communicator> made{Status(Code::kInternal, "not made")};
  };
  // One of the library's communicators.
  struct Side {
    std::shared_ptr<Making> making;      // null: not yet
    bool ready = false;                  // `communicator` is
    CollectiveLibrary::Communicator communicator = 0;
  };
  struct Team {
    std::optional<uint64_t> id;          // IssueNumber::communicator
    uint64_t numbered = 0;               // how many operations have a number, at the first member
    uint64_t next = 0;                   // to begin
    std::map<uint64_t, Due> due;         // by number
    Side sides[2];                       // of all members in order, and from the last one to the first
  };
  // An operation that the library has begun: told by it of each tensor.
  struct Running final : Completion {
    LibraryOperations* owner = nullptr;
    Due what{};
    size_t left = 0;
    Status status;
    void Done(Status status) override;
  };

  void Advance(const Communicator& comm, Team& team);
  // Starts to make one of its communicators.
  void Make(const Communicator& comm, Team& team, bool reverse);
  // Another one at each first member: two for the two sides.
  uint64_t NextId();
  // Goes on where a communicator has been made.
  bool TakeMade(const Communicator& comm, Team& team, Side& side);
  void Begin(const Side& side, Due due);
  void End(Running* running);

  std::shared_ptr<CollectiveLibrary> library_;   // null: there is none
  int process_ = 0, processes_ = 1;
  uint64_t ids_ = 0;                             // that NextId has given
  Status frozen_;
  std::map<const Communicator*, Team> teams_;
  int making_ = 0;                               // communicators that are being made
  std::list<Running> running_;
};

}  // namespace jaxccomp
