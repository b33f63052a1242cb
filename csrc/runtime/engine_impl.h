// The inside of the engine, shared by engine*.cc alone. Everything here needs the engine's lock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/comparison.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/failed_runs.h"
#include "runtime/matcher.h"
#include "runtime/operations.h"
#include "runtime/peers.h"
#include "runtime/point_to_point_matching.h"
#include "runtime/registry.h"
#include "runtime/standing.h"
#include "runtime/wire.h"
#include "runtime/workers.h"

namespace jaxccomp {

class Engine::Impl final : public Receiver, public Executor::Listener {
 public:
  using Clock = Operation::Clock;

  Impl(int process, int processes);
  ~Impl() { Shutdown(); }

  std::optional<Status> Start(Site& site, Call call, std::function<void(Status)> done);
  void Shutdown();

  // Receiver
  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override;
  void OnPeerLost(int process, const Status& why) override;
  // Executor::Listener
  void OnOver(Operation* op) override;
  void OnFailed(Operation* op) override;
  void OnSizes(Operation* op) override;
  void OnBacklog() override;
  void OnLoanFailed(const Header& header, const Status& why) override;
  // How many threads help with computations: `asked`, or, for -1, the cores that no rank needs.
  void SetCoders(int64_t asked, int ranks_on_host);

  void Break(Communicator& comm, const Status& why, bool tell);
  void Announce(const std::string& how);
  void Lose(int process, const Status& why, bool dead, bool first_hand);
  void LookForDead();
  Status Free(Communicator& comm);
  void AskWhetherBroken(const Communicator& comm);

  void CallbackFailed(const std::string& what);

  Executor& executor() { return executor_; }

  const int processes_;
  int ranks_on_host_ = 1;
  std::mutex mutex_;
  Options options_;
  Stats stats_{};
  std::function<bool()> calls_one_by_one_;   // Engine::SetCallsOneByOne
  Status first_error_;   // of any communicator
  Peers peers_;
  std::function<bool()> is_held_up_;
  Registry registry_;
  Wire wire_;
  std::function<std::string()> place_of_launch_;   // set once, before checks_launches_
  std::atomic<bool> checks_launches_ = false;

 private:
  // engine.cc: an operation's way
  Result<Operation*> Post(Site& site, Call call);
  Result<Endpoint*> EndpointOf(Site& site, int64_t device);
  void FillHeader(Operation* op, const Site& site) const;
  void Begin(Operation* op);
  bool Step(std::unique_lock<std::mutex>& lock) {
    bool any = wire_.Poll();
    any |= executor_.PollDevices();
    return executor_.Run(lock) || any;
  }
  void Drive(Operation* op, std::unique_lock<std::mutex>& lock);
  void Recycle(Operation* op);
  void EnsureProgress();

  // engine_devices.cc. May give up the lock. Ok once `call`'s device is prepared for the site's codec,
  // and nobody is preparing it for another one.
  Status PrepareDevice(Site& site, const Call& call, std::unique_lock<std::mutex>& lock);
  Status PrepareDevice(const Site& site, Device* device, DType dtype,
                       std::unique_lock<std::mutex>& lock);
  Status Refuse(Site& site, const Call& call, Status status);

  // engine_threads.cc
  void ProgressLoop();
  void Attend(std::unique_lock<std::mutex>& lock);
  void CoderLoop();

  // engine_messages.cc
  void OnLoan(const Header& header, std::span<const std::byte> payload, Announced announced);
  void OnAbort(const Header& header, std::span<const std::byte> payload);
  void OnProbe(const Endpoint& endpoint, const Header& header, bool here);
  void OnPresent(const Header& header);
  void OnBehind(const Header& header);
  // The operation that an answer is for, while it goes on; null when there is none.
  Operation* FindAsker(const Header& answer) const;
  void OnGone(const Header& header, std::span<const std::byte> payload);
  void BreakIfLost(Communicator& comm);
  void TellGone(int process, const std::string& why);
  void TellWhyBroken(const Communicator& comm, const Header& asked);
  // What waits for a communicator that is broken.
  void DropMessages(uint64_t communicator);
  Header AbortHeader(const Communicator& comm) const;
  // The message is of another launch than that one, which has its number here.
  void RefuseOtherLaunch(Endpoint& endpoint, const Launch& launch, const Header& header,
                         std::span<const std::byte> payload);
  // Ends the launch's operations within this process. Communicators remain usable: the next launch has
  // another RunId.
  void FailRun(int64_t run_id, const Status& why);
  void Discard(Announced announced) {
    if (announced.process >= 0) wire_.Discard(announced);
  }
  // Sends what nobody waits for. False when no transport leads there.
  bool Notify(int process, const Header& header, std::string payload = {});
  // The comparison that operations of that launch wait for; null when it is over.
  Comparison* PendingComparison(Endpoint& endpoint, Launch& launch);
  // Goes as far with it as messages have come.
  void Compare(Endpoint& endpoint, Comparison& comparison);

  // engine_point_to_point.cc. Of a receive from anybody, until it is matched.
  static std::shared_ptr<const Plan> PlanOfUnmatched(bool on_device);
  // Numbers what the operation sends, and fills its header.
  void JoinMessages(Operation* op, const Site& site);
  void BeginMessages(Operation* op);
  void OnPointToPoint(const Header& header, std::span<const std::byte> payload,
                      Announced announced);
  void GiveMessage(const MatchKey& receiver, const Header& header,
                   std::span<const std::byte> payload, Announced announced);
  void TakeMessage(Operation* op, const Header& header);
  void EndMessages(const Operation& op);
  std::vector<int> PartnersAwaited(const Operation& op) const;
  bool IsAlone(const Operation& op) const;
  Standing StandingTowards(const Operation& op, int peer) const;
  void IfOneByOne(std::function<void()> then);
  const Operation* WhoWaitsFor(const Endpoint& endpoint, int peer, const Standing& standing) const;
  void AskPartners(const Operation& op);
  void SendProbes(const Operation& op, bool alone);
  bool HasServed(const Endpoint& endpoint, int peer, const Standing& standing) const;
  bool HoldsUp(const Endpoint& endpoint, int peer, const Standing& standing) const;
  void OnProbeOfMessages(const Endpoint& endpoint, const Header& header,
                         std::span<const std::byte> payload);
  void OnBlocked(const Header& header, std::span<const std::byte> payload);
  // Ends a receive from the rank itself that nothing can come for.
  void CheckOwnMessages(Operation* op);
  // Whether the endpoint has begun what an asker waits for.
  bool HasCome(const Endpoint& endpoint, const Header& header,
               std::span<const std::byte> payload) const;

  // engine_watch.cc: who waits for too long, and for whom
  void CheckTimes(Clock::time_point now);
  // Less often: whether they have died, and whether a SIGINT waits for an operation to end.
  void CheckPeers(Clock::time_point now);
  void Interrupt();
  void Ask(const Operation& op, bool everybody);
  std::vector<int> WaitsFor(const Operation& op) const;
  std::string Blame(const Operation& op) const;
  void EndStrandedRuns(Clock::time_point now);

  Executor executor_;
  Matcher matcher_;
  FailedRuns failed_runs_;
  // The last exception in a callback, until what it has stranded is ended.
  struct CallbackFailure {
    Clock::time_point at;
    std::string what;
  };
  std::optional<CallbackFailure> callback_failure_;
  PointToPointMatching messages_;
  Operations operations_;
  Clock::time_point last_remote_{};   // when a large operation with another process ended

  std::set<const Device*> preparing_;   // nothing is entered there
  std::condition_variable device_wake_;
  Workers workers_;
  std::thread progress_;
  std::vector<std::thread> coders_;   // started when there is a backlog
  size_t most_coders_ = 0;
  std::condition_variable coder_wake_;
  std::condition_variable wake_;
  int inline_drivers_ = 0;
  bool stopped_ = false;
  bool announced_ = false;   // that this process ends by a failure
  Clock::time_point peers_checked_{};
  uint64_t interrupts_ = 0;
};

}  // namespace jaxccomp
