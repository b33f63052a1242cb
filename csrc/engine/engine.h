// The engine, which runs operations: what XLA's handlers and Python see of it. One per process.
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

  // The process's own engine; made by the first call, for a world of one, unless Configure
  // came before. A forked child must not touch the parent's engine, whose locks other threads may have held: it gets
  // an engine of its own, which refuses all operations.
  static Engine& Get();
  // Null as long as there is none, and in a forked child.
  static Engine* Find();
  static Status Configure(int process, int processes);

  // Processes, devices and communicators, and failed processes.
  Membership& membership();
  // Statistics, the call log and the trace.
  Measurements& measurements();

  // Sends to other processes go through this from now on.
  using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(Receiver*)>;
  Status UseRemote(const TransportFactory& make);
  // Returns the name of that transport; empty if there is none.
  std::string RemoteName() const;
  // Operations of OpSpec::mpi are done by this one. Before the first call.
  void UseLibrary(std::unique_ptr<CollectiveLibrary> library);
  // Whether the program's main thread is held up so that it cannot handle a SIGINT that has come;
  // called on a thread that may wait. If so, operations that wait for a peer fail.
  void SetInterruptJudge(std::function<bool()> is_held_up);
  // Called with the reason if a transport accesses the memory of a failed operation, only a peer can end the transfers,
  // and none has ended for this long. Default: after 10 s, print the reason on stderr and end the process.
  void SetAbortHandler(std::function<void(const std::string&)> abort, std::chrono::milliseconds after);
  Status SetOption(std::string_view name, std::string_view value);
  // Tells whether one thread of the program calls all operations in program order, each when the one
  // before it is over. Only then it can be certain that ranks wait for each other for ever. Called on a
  // thread of the engine, and may take its time. Before the first call of Start; without it, nothing is
  // certain.
  void SetCallsOneByOne(std::function<bool()> calls_one_by_one);

  // Runs one operation. Returns its status when it is over by the time of return; else it has asked
  // `later` for what to call when it is, on a thread of the engine. The tensors stay valid until then.
  // Never waits for a peer longer than the spin_microseconds option.
  using Done = std::function<void(Status)>;
  std::optional<Status> Start(CallSite& site, Call call, const std::function<Done()>& later);
  // Which member of its communicator a call of `site` on that device is.
  Result<int> FindMember(CallSite& site, int64_t device) const;
  // Fails all operations on the communicator that a call of `site` on that device uses, on all ranks, with the error
  // `why`: this rank cannot run an operation that the other ranks wait for.
  void Break(CallSite& site, int64_t device, const Status& why);
  // The option of that name, for the stage.
  int64_t device_part_bytes() const;
  // From now on each launch has the place that this returns (Call::place). It is called without a lock.
  void CheckLaunches(std::function<std::string()> place);
  // A callback of a program has raised that exception, and so ended the program on some device of this
  // process. Its launch ends on the others, too, where they wait for that one.
  void CallbackFailed(const std::string& what);
  // XLA frees a program: forgets its call site.
  void Forget(CallSite& site);

  // Ends all operations with kAborted and stops the threads; nothing runs afterwards.
  void Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jaxccomp
