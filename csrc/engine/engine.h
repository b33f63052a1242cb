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
  // Creates the engine of process number `process` in a world of `processes`. Tests create several in one process.
  Engine(int process, int processes);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns the engine of this process. The first call creates it for a world of one, unless Configure has created it.
  // In a forked child, other threads may have held the locks of the parent's engine at the fork. So the child gets an
  // engine of its own, which refuses all operations.
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
  // Sets the library for operations with OpSpec::mpi. Call it before the first operation.
  void UseLibrary(std::unique_ptr<CollectiveLibrary> library);
  // `is_held_up` returns whether the program's main thread is blocked and cannot handle a SIGINT. The engine calls it
  // on a worker after each SIGINT, so it may block. If it returns true, operations that make no progress fail.
  void SetInterruptJudge(std::function<bool()> is_held_up);
  // `abort` is called with the reason if a failed operation has made no progress for the time `after`, while a
  // transport accesses its memory and only a peer can end the transfer. Default: after 10 s, print the reason on
  // stderr and end the process.
  void SetAbortHandler(std::function<void(const std::string&)> abort, std::chrono::milliseconds after);
  Status SetOption(std::string_view name, std::string_view value);
  // `calls_one_by_one` returns whether one thread of the program calls all operations in program order, each after the
  // previous one is over. Only then does the engine report deadlocks (DeadlockDetector). The engine calls it on a
  // worker, so it may block. Set it before the first Start.
  void SetCallsOneByOne(std::function<bool()> calls_one_by_one);

  // Starts an operation. If it ends during the call, returns its status. Otherwise calls `later`, and a worker calls
  // the callback that `later` has returned when the operation is over. The tensors must stay valid until then. Start
  // never waits for a peer longer than the spin_microseconds option.
  using Done = std::function<void(Status)>;
  std::optional<Status> Start(CallSite& site, Call call, const std::function<Done()>& later);
  // Returns which member of the communicator of `site` runs on that device.
  Result<int> FindMember(CallSite& site, int64_t device) const;
  // Fails all operations on the communicator that a call of `site` on that device uses, on all ranks, with the error
  // `why`: this rank cannot run an operation that the other ranks wait for.
  void Revoke(CallSite& site, int64_t device, const Status& why);
  // Returns the option device_part_bytes, for cuda/stage.
  int64_t device_part_bytes() const;
  // Sets the function that returns each launch's place (Call::place). It is called without a lock.
  void CheckLaunches(std::function<std::string()> place);
  // Reports that a Python callback has raised the exception `what`, which has ended its program on one device of this
  // process. Operations in which other devices of this process then wait for that device fail (StrandedRuns).
  void CallbackFailed(const std::string& what);
  // Frees the plans of a call site. Call it when XLA frees the program.
  void Forget(CallSite& site);

  // Ends all operations with kAborted, and stops the threads.
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jaxccomp
