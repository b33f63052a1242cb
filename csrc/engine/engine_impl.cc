#include "engine/engine_impl.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "common/forks.h"
#include "common/pages.h"
#include "matching/mismatch.h"
#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Longest time that a caller drives its operation, even if the operation makes progress.
constexpr auto kLongestInline = milliseconds(5);
// How long a process that ends after an error waits for the others, which may be dead.
constexpr double kPartingSecondsAfterAnError = 10;
// How long a process that ends waits for its open operations of a library of collectives.
constexpr auto kLibraryParts = milliseconds(1000);
constexpr int64_t kHugePagesFromBytes = 4 << 20;
constexpr int64_t kLimitRetainedFromBytes = 64 << 20;
// The callback of an operation runs the continuation of XLA's program. In it, an in-process collective of XLA may block
// until all devices of the process have reached it. So each continuation needs a thread. Threads start on demand.
constexpr size_t kMaxWorkers = 256;

// Prepares the pages of results in host memory.
void SetUpPages(const std::vector<Tensor>& results, bool huge_pages, bool retain_memory) {
  for (const Tensor& t : results) {
    if (retain_memory && t.bytes >= kLimitRetainedFromBytes) LimitRetainedMemory();
    if (!huge_pages || t.bytes < kHugePagesFromBytes) continue;
    AdviseHugePages(t.data, t.bytes);
    if (retain_memory) UseHugePagesInHeap();
  }
}

}  // namespace

Engine::Impl::Impl(int process, int processes)
    : registry_(process, processes),
      router_(process, std::make_unique<LocalTransport>(process, &peer_messages_)),
      executor_(&router_, this, &stats_),
      library_(&executor_),
      messages_(&router_),
      workers_(kMaxWorkers),
      step_(&router_, &library_, &executor_),
      flight_recorder_(&registry_, &router_, &operations_),
      flight_writer_(&lock_, &flight_recorder_, &router_),
      failures_(&lock_, &registry_, &router_, &executor_, &matcher_, &messages_, &operations_, &flight_writer_),
      point_to_point_(&options_, &router_, &executor_, &messages_, &operations_),
      deadlocks_(&lock_, &router_, &executor_, &messages_, &operations_, &workers_, &failures_),
      comparison_(&options_, &router_, &matcher_, &failures_, [this](Operation* op) { Begin(op); }),
      peer_messages_(&options_, &registry_, &router_, &executor_, &matcher_, &operations_, &failures_,
                     &point_to_point_, &deadlocks_, &comparison_),
      stranded_(&lock_, &executor_, &matcher_, &operations_),
      interrupts_(&lock_, &executor_, &operations_, &workers_),
      watchdog_(&options_, &router_, &executor_, &matcher_, &operations_, &workers_, &failures_, &deadlocks_,
                &stranded_, &interrupts_),
      progress_(&lock_, &router_, &executor_, &library_, &operations_, &step_, &watchdog_),
      coders_(&lock_, &registry_, &executor_),
      membership_(&lock_, &registry_, &router_, &failures_, &progress_, &coders_),
      measurements_(&lock_, &stats_, &calls_, &executor_.trace(), &operations_, &flight_recorder_),
      huge_pages_(options_.huge_pages),
      retain_memory_(options_.retain_memory) {
  WatchForks();
}

void Engine::Impl::OnOptions() {
  coders_.SetMax(options_.coder_threads);
  huge_pages_ = options_.huge_pages;
  retain_memory_ = options_.retain_memory;
}

void Engine::Impl::CheckLaunches(std::function<std::string()> place) {
  if (checks_launches_) return;
  place_of_launch_ = std::move(place);
  checks_launches_ = true;
}

// ---- Posting -----------------------------------------------------------------------------

Result<Endpoint*> Engine::Impl::EndpointOf(CallSite& site, int64_t device) {
  if (auto known = site.endpoints.find(device); known != site.endpoints.end()) {
    return known->second;
  }
  Result<Endpoint*> endpoint = registry_.FindEndpoint(site.spec, device);
  if (endpoint.ok()) {
    site.endpoints[device] = *endpoint;
    failures_.RevokeIfMemberFailed(*(*endpoint)->communicator);
  }
  return endpoint;
}

Result<Operation*> Engine::Impl::Post(CallSite& site, Call call) {
  if (lock_.stopped) return Status(Code::kAborted, "jaxccomp has been shut down");
  Result<Endpoint*> found = EndpointOf(site, call.device);
  if (!found.ok()) return found.status();
  Endpoint& endpoint = **found;
  Communicator& comm = *endpoint.communicator;
  if (comm.freed) {
    return Status(Code::kFailedPrecondition,
                  *site.text + ": communicator '" + comm.name + "' has been freed");
  }
  if (comm.member_failed) return Status(comm.revoked.code(), *site.text + ": " + comm.revoked.message());
  if (!comm.revoked.ok()) {
    return Status(comm.revoked.code(), *site.text + ": the communicator cannot be used "
                                          "after an earlier error: " + comm.revoked.message());
  }
  if (Status status = library_.Check(site.spec, comm); !status.ok()) {
    failures_.Revoke(comm, status, Tell::kMembers);
    return status;
  }
  if (site.program != nullptr) CloseProgram(*site.program);

  if (const Status* failed = comm.remote ? nullptr : failures_.FailedRun(call.run_id)) {
    return Status(failed->code(), *site.text + ": another operation of this launch has failed: " +
                                      failed->message());
  }

  std::shared_ptr<const Plan>& known_plan = site.plans[{&endpoint, call.part}];
  std::shared_ptr<const Plan> plan = known_plan;
  const bool ragged = site.spec.collective == Collective::kRaggedAlltoall;
  const bool messages = site.spec.PointToPoint();
  if (messages && site.spec.Source() == OpSpec::kAnySource) {
    plan = std::make_shared<Plan>();  // empty: PointToPoint::Take makes the plan once the sender is known
  } else if (plan == nullptr || ragged) {
    Result<std::shared_ptr<const Plan>> made = MakePlan(site, endpoint, call, options_);
    if (!made.ok()) {
      failures_.Revoke(comm, made.status(), Tell::kMembers);
      return made.status();
    }
    plan = known_plan = *made;
  }

  Matcher::Posted posted;
  if (messages) posted.key = messages_.NewOperation(endpoint);
  else posted = matcher_.Post(site, endpoint, call);
  if (posted.overlaps) {
    const Status overlaps = OverlapError(endpoint, *site.text);
    failures_.Revoke(comm, overlaps, Tell::kMembers);
    return overlaps;
  }
  Operation* const op = operations_.Insert(posted.key, comm.remote);
  if (op == nullptr) {
    const Status twice(Code::kInternal,
                       site.spec.ToString() + ": two operations of one launch have the same "
                       "identity. Several threads run the same program at once; give each a "
                       "communicator of its own (comm.duplicate)");
    failures_.Revoke(comm, twice, Tell::kMembers);
    return twice;
  }
  op->endpoint = &endpoint;
  op->launch = posted.launch;
  if (op->launch != nullptr) ++op->launch->open_operations;
  op->text = site.text;
  op->caller.driven = true;   // until Start returns: OnOver does not recycle a driven operation, so `op` stays valid
  op->plan = std::move(plan);
  op->call = std::move(call);
  op->caller.row = RowOf(site);
  op->liveness.begun = op->liveness.last_progress = op->liveness.probed_at = Clock::now();
  FillHeader(op, site);
  op->in_program_order = messages || site.spec.ordered;
  if (messages) point_to_point_.Join(op, site);

  Comparison* const comparison =
      posted.launch == nullptr ? nullptr : comparison_.Pending(endpoint, *posted.launch);
  if (comparison == nullptr) {
    Begin(op);
  } else {
    op->phase = Operation::Phase::kComparing;
    comparison->held.push_back(op);
  }
  if (posted.new_launch && options_.check_programs && comm.revoked.ok()) {
    if (const Arrival* arrival = matcher_.FindOtherLaunch(endpoint, *posted.launch)) {
      const Header header = arrival->header;  // copied, because RefuseOtherLaunch drops the arrival
      const std::vector<std::byte> payload = arrival->payload;
      peer_messages_.RefuseOtherLaunch(endpoint, *posted.launch, header, payload);
    }
  }
  if (comparison != nullptr && comm.revoked.ok()) comparison_.Compare(endpoint, *comparison);
  return op;
}

void Engine::Impl::FillHeader(Operation* op, const CallSite& site) const {
  Header& h = op->header;
  h = site.header;
  const auto& values = op->call.residuals_in.empty() ? op->call.inputs : op->call.residuals_in;
  if (!values.empty()) h.dtype = static_cast<uint8_t>(values[0].dtype);
  h.communicator = op->key.communicator;
  h.thread = op->key.thread;
  h.sequence = op->key.sequence;
  h.site = op->key.site;
  h.iteration = op->key.iteration;
  if (op->launch != nullptr) {
    op->launch->Describe(&h);
    if (!options_.check_programs) h.program_hash = 0;
    if (h.place != 0) CopyText(op->launch->place, h.text);
  } else {
    h.place = StepOf(op->call.place);
  }
  h.source = op->endpoint->member;
  h.source_process = router_.process();
  h.total_bytes = op->plan->total_bytes;
}

void Engine::Impl::Begin(Operation* op) {
  if (op->held()) op->liveness.last_progress = Clock::now();
  op->phase = Operation::Phase::kRunning;
  if (op->ends.used) return point_to_point_.Begin(op);
  std::vector<Arrival> arrivals = matcher_.early().Take(op->key);
  executor_.Begin(op);
  for (Arrival& a : arrivals) {
    if (op->failed() || op->over()) {
      router_.Discard(a.announced);
      continue;
    }
    peer_messages_.Deliver(IncomingMessage(a));
  }
}

std::optional<Status> Engine::Impl::Start(CallSite& site, Call call,
                                          const std::function<Done()>& later) {
  if (IsForkedChild()) {
    // The locks may be held by threads that exist only in the parent.
    return Status(Code::kFailedPrecondition,
                  *site.text + ": this process was forked from a rank and is not a rank itself. Start "
                  "processes that communicate with mpiexec, and helpers with "
                  "multiprocessing.get_context('spawn')");
  }
  // Without the engine's lock, because the function takes the GIL.
  if (checks_launches_) call.place = place_of_launch_();
  SetUpPages(call.outputs, huge_pages_, retain_memory_);
  std::unique_lock<std::mutex> lock(lock_.mutex);
  if (Status status = StartThreads(); !status.ok()) return status;
  Result<Operation*> posted = Post(site, std::move(call));
  if (!posted.ok()) {
    RowOf(site)->counts.Add({}, true);
    flight_recorder_.OnRefused(site.text, posted.status());
    flight_writer_.OnFailure(posted.status().message());
    return posted.status();
  }
  Operation* const op = *posted;
  // Return the credit of unexpected messages that this operation has taken: their sender may wait for it.
  router_.ReturnCredit();
  if (!op->over()) {
    Drive(op, lock);
    if (op->remote) progress_.OnPolledElsewhere();
  }
  if (op->over()) {
    Status status = std::move(op->status);
    Recycle(op);
    // Driving it may have left work, or messages to other endpoints of this process.
    if (!operations_.empty() && (executor_.HasWork() || router_.HasLocalMessages())) {
      lock_.wake.notify_one();
    }
    return status;
  }
  op->caller.driven = false;
  if (later != nullptr) op->caller.on_done = later();
  if (lock_.stopped) return std::nullopt;  // Shutdown ends it
  lock_.wake.notify_one();
  return std::nullopt;
}

Status Engine::Impl::StartThreads() {
  if (has_threads_ || lock_.stopped) return Status::Ok();
  try {
    progress_.Ensure();
    workers_.Ensure();
  } catch (const std::system_error& error) {
    return {Code::kUnavailable, std::string("jaxccomp cannot start a thread (") + error.what() +
                                    "): raise the limit of processes and threads (ulimit -u, or pids.max of the "
                                    "container), or start fewer ranks"};
  }
  has_threads_ = true;
  return Status::Ok();
}

void Engine::Impl::Drive(Operation* op, std::unique_lock<std::mutex>& lock) {
  // With several endpoints in one process the peers are other threads, which need this core: the last thread to begin
  // the operation finishes it.
  const bool spins = op->remote && op->endpoint->communicator->endpoints.size() == 1;
  const auto patience = microseconds(options_.spin_microseconds);
  const auto begun = op->liveness.begun;
  auto last = begun;
  ++lock_.polling_callers;
  // Start the sends before the first poll, because peers wait for them. Poll even if the operation is then over: a rank
  // that only sends must receive the credit that its receivers return.
  bool any = executor_.Run(lock);
  for (int idle = 0; !lock_.stopped;) {
    any |= step_.Step(lock);
    if (op->over()) break;
    if (std::exchange(any, false)) {
      idle = 0;
      last = Clock::now();
      if (last - begun > kLongestInline) break;
      continue;
    }
    if (!spins) break;
    if (++idle % 8 == 0) {
      if (Clock::now() - last > patience) break;
      lock.unlock();
      sched_yield();
      lock.lock();
    }
  }
  if (--lock_.polling_callers == 0 && lock_.stopped) lock_.wake.notify_all();
}

void Engine::Impl::Recycle(Operation* op) {
  point_to_point_.End(*op);
  operations_.Remove(op);
}

const std::shared_ptr<CallRow>& Engine::Impl::RowOf(CallSite& site) {
  if (site.row == nullptr) site.row = calls_.RowOf(site.spec, *site.text);
  return site.row;
}

void Engine::Impl::CountCall(Operation* op) {
  for (const Tensor& t : op->call.inputs) op->caller.cost.operand_bytes += t.bytes;
  if (op->liveness.first_message != Clock::time_point()) {
    op->caller.cost.wait_seconds = duration<double>(op->liveness.first_message - op->liveness.begun).count();
  }
  op->caller.row->algorithm = op->plan->algorithm == nullptr ? "" : op->plan->algorithm->name;
  op->caller.row->counts.Add(op->caller.cost, op->failed());
}

void Engine::Impl::OnFailed(Operation* op) {
  flight_recorder_.OnFailed(*op);
  failures_.OnFailed(op);
}

void Engine::Impl::OnOver(Operation* op) {
  CollectiveStats& stats = stats_[op->header.collective];
  ++stats.calls;
  stats.value_bytes += op->plan->total_bytes;
  const auto now = Clock::now();
  op->caller.cost.seconds = duration<double>(now - op->liveness.begun).count();
  stats.seconds += op->caller.cost.seconds;
  CountCall(op);
  flight_recorder_.OnOver(*op, now);
  if (op->budget.peak_bytes() > stats.peak_bytes) {
    stats.peak_bytes = op->budget.peak_bytes();
    stats.bound_bytes = op->plan->limits.bound_bytes;
  }
  if (op->remote && op->plan->total_bytes > kAlongBytes) progress_.OnRemoteOver(now);
  if (op->launch != nullptr) {
    --op->launch->open_operations;
    if (op->comparing()) std::erase(op->launch->comparison->held, op);
  }
  if (!op->failed()) op->endpoint->recent.Add(op->key, op->text);
  if (op->caller.driven) return;
  if (op->caller.on_done != nullptr) {
    workers_.Run([done = std::move(op->caller.on_done), status = std::move(op->status)] { done(status); });
  }
  Recycle(op);
}

void Engine::Impl::LeaveLibrary(std::unique_lock<std::mutex>& lock) {
  const auto deadline = Clock::now() + kLibraryParts;
  while (library_.HasRunning() && Clock::now() < deadline) {
    if (step_.Step(lock)) continue;
    lock.unlock();
    std::this_thread::sleep_for(microseconds(100));
    lock.lock();
  }
  if (!library_.HasRunning()) return;
  const Status why(Code::kUnavailable, "the process has ended while MPI ran an operation");
  // XLA frees the memory of these operations when they end, so MPI must not continue.
  if (router_.HasRemote()) router_.remote()->Quiesce(why);
  library_.Quiesce(why);
}

void Engine::Impl::Shutdown() {
  std::unique_lock<std::mutex> lock(lock_.mutex);
  if (lock_.stopped) return;
  lock_.stopped = true;
  // Revoke all communicators. Ranks in a communicator with an open operation are notified at once; other ranks get the
  // error when they probe this one.
  std::set<const Communicator*> busy;
  double patience_seconds = options_.timeout_seconds;
  if (failures_.announced() || !failures_.peers().failed().empty()) {
    patience_seconds = std::min(patience_seconds, kPartingSecondsAfterAnError);
  }
  const std::string me = "rank " + std::to_string(router_.process()) + " of the world";
  operations_.Each([&](const Operation& op) {
    if (!op.over()) busy.insert(op.endpoint->communicator);
  });
  for (Communicator* comm : registry_.All()) {
    if (!comm->revoked.ok()) {
      patience_seconds = std::min(patience_seconds, kPartingSecondsAfterAnError);
    }
    const Tell tell = busy.contains(comm) && !failures_.announced() ? Tell::kMembers : Tell::kNobody;
    failures_.Revoke(*comm, {Code::kAborted, me + " has ended its program"}, tell, Cause::kMember);
  }
  lock_.wake.notify_all();
  while (lock_.polling_callers > 0) lock_.wake.wait(lock);
  lock.unlock();
  progress_.Join();
  coders_.Join();
  lock.lock();
  LeaveLibrary(lock);
  const milliseconds patience(static_cast<int64_t>(patience_seconds * 1000));
  // Closing ends the last transfers and so the last operations.
  router_.Close(patience);
  lock.unlock();
  flight_writer_.Stop();
  workers_.Stop();
}

}  // namespace jaxccomp
