// The engine, which runs operations: the interface for XLA's handlers and Python. One per process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "execution/collective_library.h"
#include "matching/call.h"
#include "matching/program.h"
#include "transport/transport.h"

namespace jaxccomp {

class Measurements;
class Membership;

class Engine {
 public:
  // The engine of a process of a world of `processes`. Tests make several in one process.
  Engine(int process, int processes);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The process's own engine. The first call makes it, for a world of one, unless Configure came before. A forked
  // child must not touch the parent's engine, whose locks other threads may have held: it gets an engine of its own,
  // which refuses all operations.
  static Engine& Get();
  // Null if there is none, and in a forked child.
  static Engine* Find();
  static Status Configure(int process, int processes);

  // Processes, devices and communicators, and failed processes.
  Membership& membership();
  // Statistics, the call log and the trace.
  Measurements& measurements();

  // Sets the transport to other processes.
  using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(Receiver*)>;
  Status UseRemote(const TransportFactory& make);
  // Returns the name of that transport; empty if there is none.
  std::string RemoteName() const;
  // Sets the library for operations of OpSpec::mpi. Call it before the first operation.
  void UseLibrary(std::unique_ptr<CollectiveLibrary> library);
  // `is_held_up` tells whether the program's main thread is blocked and cannot handle a SIGINT that has come. It is
  // called on a thread that may wait. If true, operations that wait for a peer fail.
  void SetInterruptJudge(std::function<bool()> is_held_up);
  // `abort` is called with the reason if a transport accesses the memory of a failed operation, only a peer can end
  // the transfers, and none has ended for this long. Default: after 10 s, print the reason on stderr and end the
  // process.
  void SetAbortHandler(std::function<void(const std::string&)> abort, std::chrono::milliseconds after);
  Status SetOption(std::string_view name, std::string_view value);
  // `calls_one_by_one` tells whether one thread of the program calls all operations in program order, each after the
  // one before is over. Only then can the engine know that ranks wait for each other for ever. It is called on a
  // thread of the engine, and may take its time. Set it before the first Start; without it, the engine reports no
  // such deadlock.
  void SetCallsOneByOne(std::function<bool()> calls_one_by_one);

  // Runs one operation. Returns its status if it is over. Otherwise Start has called `later`, and the
  // callback that it returned is called at the end, on a thread of the engine; the tensors stay valid until then.
  // Never waits for a peer longer than the spin_microseconds option.
  using Done = std::function<void(Status)>;
  std::optional<Status> Start(CallSite& site, Call call, const std::function<Done()>& later);
  // The member of its communicator that runs `site` on that device.
  Result<int> FindMember(CallSite& site, int64_t device) const;
  // Fails all operations on the communicator that a call of `site` on that device uses, on all ranks, with the error
  // `why`: this rank cannot run an operation that the other ranks wait for.
  void Break(CallSite& site, int64_t device, const Status& why);
  // The option of that name, for cuda/stage.
  int64_t device_part_bytes() const;
  // Sets the function that returns each launch's place (Call::place). It is called without a lock.
  void CheckLaunches(std::function<std::string()> place);
  // A callback has raised the exception `what`, which has ended its program on one device of this process. Ends the
  // launch also on the other devices that wait for that one.
  void CallbackFailed(const std::string& what);
  // Forgets a call site whose program XLA frees.
  void Forget(CallSite& site);

  // Ends all operations with kAborted, and stops the threads.
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jaxccomp
