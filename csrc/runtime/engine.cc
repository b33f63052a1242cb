// An operation's way: posted, driven, ended.
#include "runtime/engine.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/forks.h"
#include "common/interrupts.h"
#include "runtime/device_sizes.h"
#include "runtime/engine_impl.h"
#include "runtime/memory.h"
#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a caller drives its operation itself even while it progresses.
constexpr auto kLongestInline = milliseconds(5);
// A continuation of an XLA program may block until all devices of the process have come as far
// (in-process collectives of XLA do), so there must be a thread for each; they start on demand.
constexpr size_t kMostWorkers = 256;
constexpr int64_t kHugePagesFromBytes = 4 << 20;

void CopyTensor(const Tensor& from, const Tensor& to) {
  if (from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<size_t>(std::min(from.bytes, to.bytes)));
  }
}

// What results in the host's memory hold before anything comes, and the pages that they lie in.
void PrepareResults(const OpSpec& spec, const Call& call, const Options& options) {
  if (options.huge_pages) {
    for (const Tensor& t : call.outputs) {
      if (t.bytes < kHugePagesFromBytes) continue;
      AdviseHugePages(t.data, t.bytes);
      if (options.retain_memory) UseHugePagesInHeap();
    }
  }
  if (!spec.StartsFromOperands()) return;
  // A ragged exchange writes into a copy of its second operand; others pass theirs on.
  const size_t first = spec.collective == Collective::kRaggedAlltoall ? 1 : 0;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    CopyTensor(call.inputs[first + i], call.outputs[i]);
  }
}

}  // namespace

Engine::Impl::Impl(int process, int processes)
    : processes_(processes),
      registry_(process, processes),
      wire_(process, std::make_unique<LocalTransport>(process, this)),
      executor_(&wire_, this, &stats_),
      messages_(&wire_),
      workers_(kMostWorkers) {
  WatchForks();
}

// ---- Posting -----------------------------------------------------------------------------

Result<Endpoint*> Engine::Impl::EndpointOf(Site& site, int64_t device) {
  if (auto known = site.endpoints.find(device); known != site.endpoints.end()) {
    return known->second;
  }
  Result<Endpoint*> endpoint = registry_.FindEndpoint(site.spec, device);
  if (endpoint.ok()) {
    site.endpoints[device] = *endpoint;
    BreakIfLost(*(*endpoint)->communicator);
  }
  return endpoint;
}

Result<Operation*> Engine::Impl::Post(Site& site, Call call) {
  if (stopped_) return Status(Code::kAborted, "jaxccomp has been shut down");
  Result<Endpoint*> found = EndpointOf(site, call.device);
  if (!found.ok()) return found.status();
  Endpoint& endpoint = **found;
  Communicator& comm = *endpoint.communicator;
  if (comm.freed) {
    return Status(Code::kFailedPrecondition,
                  *site.text + ": communicator '" + comm.name + "' has been freed");
  }
  if (comm.lost) return Status(comm.broken.code(), *site.text + ": " + comm.broken.message());
  if (!comm.broken.ok()) {
    return Status(comm.broken.code(), *site.text + ": the communicator cannot be used "
                                          "after an earlier error: " + comm.broken.message());
  }
  if (comm.remote && !site.spec.OnlyMeets() && wire_.remote() != nullptr &&
      !wire_.remote()->CarriesValues()) {
    return NoValuesTravel(*site.text);
  }
  if (site.program != nullptr) CloseProgram(*site.program);

  if (const Status* failed = comm.remote ? nullptr : failed_runs_.Find(call.run_id)) {
    return Status(failed->code(), *site.text + ": another operation of this launch has failed: " +
                                      failed->message());
  }

  std::shared_ptr<const Plan>& known_plan = site.plans[&endpoint];
  std::shared_ptr<const Plan> plan = known_plan;
  const bool ragged = site.spec.collective == Collective::kRaggedAlltoall;
  const bool awaits_sizes = ragged && call.memory != nullptr;
  const bool messages = site.spec.PointToPoint();
  if (messages && site.spec.Source() == OpSpec::kAnySource) {
    plan = PlanOfUnmatched(call.memory != nullptr);
  } else if (awaits_sizes) {
    plan = PlanWithoutSizes();
  } else if (plan == nullptr || ragged || plan->on_device != (call.memory != nullptr)) {
    Result<std::shared_ptr<const Plan>> made = MakePlan(site, endpoint, call, options_);
    if (!made.ok()) {
      Break(comm, made.status(), true);
      return made.status();
    }
    plan = known_plan = *made;
  }

  Matcher::Posted posted;
  if (messages) posted.key = messages_.NewOperation(endpoint);
  else posted = matcher_.Post(site, endpoint, call);
  if (posted.overlaps) {
    const Status overlaps = OverlapError(endpoint, *site.text);
    Break(comm, overlaps, true);
    return overlaps;
  }
  Operation* const op = operations_.Insert(posted.key, comm.remote);
  if (op == nullptr) {
    const Status twice(Code::kInternal,
                       site.spec.ToString() + ": two operations of one launch have the same "
                       "identity. Several threads run the same program at once; give each a "
                       "communicator of its own (comm.duplicate)");
    Break(comm, twice, true);
    return twice;
  }
  op->endpoint = &endpoint;
  op->launch = posted.launch;
  if (op->launch != nullptr && call.memory == nullptr) ++op->launch->open_operations;
  op->text = site.text;
  op->driven = true;
  op->plan = std::move(plan);
  op->call = std::move(call);
  op->begun = op->last_progress = op->asked_at = Clock::now();
  FillHeader(op, site);
  op->in_program_order = messages || site.spec.ordered;
  if (messages) JoinMessages(op, site);
  if (awaits_sizes) op->sizes = std::make_shared<AwaitedSizes>(site);
  if (op->call.memory == nullptr) {
    PrepareResults(site.spec, op->call, options_);
  } else if (Status status = executor_.Enter(op); !status.ok()) {
    executor_.Fail(op, std::move(status));
    return op;
  }

  Comparison* const comparison =
      posted.launch == nullptr ? nullptr : PendingComparison(endpoint, *posted.launch);
  if (comparison == nullptr) {
    Begin(op);
  } else {
    op->held = op->comparing = true;
    comparison->held.push_back(op);
  }
  if (posted.new_launch && options_.check_programs && comm.broken.ok()) {
    if (const Arrival* arrival = matcher_.FindOtherLaunch(endpoint, *posted.launch)) {
      const Header header = arrival->header;  // it is dropped on the way
      const std::vector<std::byte> payload = arrival->payload;
      RefuseOtherLaunch(endpoint, *posted.launch, header, payload);
    }
  }
  if (comparison != nullptr && comm.broken.ok()) Compare(endpoint, *comparison);
  return op;
}

void Engine::Impl::FillHeader(Operation* op, const Site& site) const {
  Header& h = op->header;
  h = site.header;
  if (!op->call.inputs.empty()) h.dtype = static_cast<uint8_t>(op->call.inputs[0].dtype);
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
  h.source_process = wire_.process();
  h.total_bytes = op->plan->total_bytes;
}

void Engine::Impl::Begin(Operation* op) {
  op->comparing = false;
  op->held = op->sizes != nullptr;
  if (op->held) return;   // OnSizes goes on
  op->last_progress = Clock::now();
  if (op->ends.used) return BeginMessages(op);
  std::vector<Arrival> arrivals = matcher_.early().Take(op->key);
  executor_.Begin(op);
  for (Arrival& a : arrivals) {
    if (op->failed || op->over) {
      Discard(a.announced);
      continue;
    }
    OnMessage(a.header, a.payload, a.announced);
  }
}

void Engine::Impl::OnSizes(Operation* op) {
  Result<std::shared_ptr<const Plan>> made = PlanWithSizes(*op, options_);
  DropSizes(op);
  if (!made.ok()) return executor_.Fail(op, made.status());
  op->plan = std::move(*made);
  op->header.total_bytes = op->plan->total_bytes;
  if (!op->comparing) Begin(op);
}

std::optional<Status> Engine::Impl::Start(Site& site, Call call,
                                          std::function<void(Status)> done) {
  if (IsForkedChild()) {
    // Its locks may be held by threads that only the parent has.
    return Status(Code::kFailedPrecondition,
                  *site.text + ": this process was forked off a rank, and is none itself. Start "
                  "processes that communicate with mpiexec, and helpers with "
                  "multiprocessing.get_context('spawn')");
  }
  // Without the lock: it takes Python's.
  if (checks_launches_) call.place = place_of_launch_();
  std::unique_lock<std::mutex> lock(mutex_);
  if (Status status = PrepareDevice(site, call, lock); !status.ok()) {
    return Refuse(site, call, std::move(status));
  }
  Result<Operation*> posted = Post(site, std::move(call));
  if (!posted.ok()) return posted.status();
  Operation* const op = *posted;
  if (op->remote) EnsureProgress();
  // What had come early has been taken: its sender may wait to hear of it.
  wire_.Settle();
  // On a device nothing ends that soon, and its caller's thread has more to queue.
  if (!op->over && op->device == nullptr) Drive(op, lock);
  if (op->over) {
    Status status = std::move(op->status);
    Recycle(op);
    // Its last messages may be what others here wait for.
    if (!operations_.empty() && (executor_.HasWork() || wire_.HasLocalMessages())) {
      wake_.notify_one();
    }
    return status;
  }
  op->driven = false;
  op->on_done = std::move(done);
  if (stopped_) return std::nullopt;  // Shutdown ends it
  EnsureProgress();
  wake_.notify_one();
  return std::nullopt;
}

// Does the caller's operation on the caller's thread while that goes well. It never waits for
// long, so operations that XLA starts in different orders on different ranks cannot block each
// other.
void Engine::Impl::Drive(Operation* op, std::unique_lock<std::mutex>& lock) {
  // With several endpoints in one process the peers are other threads of it, which need this
  // core: whoever comes last finishes the operation.
  const bool spins = op->remote && op->endpoint->communicator->endpoints.size() == 1;
  const auto patience = microseconds(options_.spin_microseconds);
  const auto begun = op->begun;
  auto last = begun;
  ++inline_drivers_;
  for (int idle = 0; !op->over && !stopped_;) {
    if (Step(lock)) {
      idle = 0;
      last = Clock::now();
      if (last - begun > kLongestInline) break;
      continue;
    }
    if (!spins || op->over) break;
    if (++idle % 8 == 0) {
      if (Clock::now() - last > patience) break;
      lock.unlock();
      sched_yield();
      lock.lock();
    }
  }
  if (--inline_drivers_ == 0 && stopped_) wake_.notify_all();
}

void Engine::Impl::EnsureProgress() {
  if (progress_.joinable() || stopped_) return;
  WatchInterrupts();
  progress_ = std::thread([this] { ProgressLoop(); });
}

void Engine::Impl::Recycle(Operation* op) {
  EndMessages(*op);
  operations_.Remove(op);
}

void Engine::Impl::OnOver(Operation* op) {
  CollectiveStats& stats = stats_[op->header.collective];
  ++stats.calls;
  stats.value_bytes += op->plan->total_bytes;
  const auto now = Clock::now();
  stats.seconds += duration<double>(now - op->begun).count();
  if (op->peak_bytes > stats.peak_bytes) {
    stats.peak_bytes = op->peak_bytes;
    stats.bound_bytes = op->plan->limits.bound_bytes;
  }
  if (op->remote && op->plan->total_bytes > kAlongBytes) last_remote_ = now;
  if (op->launch != nullptr) {
    if (op->call.memory == nullptr) --op->launch->open_operations;
    if (op->comparing) std::erase(op->launch->comparison->held, op);
  }
  if (!op->failed) op->endpoint->recent.Add(op->key, op->text);
  if (op->driven) return;
  if (op->on_done != nullptr) {
    workers_.Run([done = std::move(op->on_done), status = std::move(op->status)] { done(status); });
  }
  Recycle(op);
}

}  // namespace jaxccomp
