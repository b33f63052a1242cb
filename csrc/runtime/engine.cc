#include "runtime/engine.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

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
// How long after an operation messages of it may be under way still.
constexpr auto kAttentive = milliseconds(20);
// How long a process that ends after an error waits for the others to end; others may be dead.
constexpr double kPartingSecondsAfterAnError = 10;
constexpr int64_t kHugePagesFromBytes = 4 << 20;

void CopyTensor(const Tensor& from, const Tensor& to) {
  if (from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<size_t>(std::min(from.bytes, to.bytes)));
  }
}

// What results hold before anything comes, and the pages that they lie in.
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
      workers_(kMostWorkers) {}

// ---- Posting -----------------------------------------------------------------------------

Result<Endpoint*> Engine::Impl::EndpointOf(Site& site, int64_t device) {
  if (auto known = site.endpoints.find(device); known != site.endpoints.end()) {
    return known->second;
  }
  Result<Endpoint*> endpoint = registry_.FindEndpoint(site.spec, device);
  if (endpoint.ok()) site.endpoints[device] = *endpoint;
  return endpoint;
}

Result<Operation*> Engine::Impl::Post(Site& site, Call call) {
  if (stopped_) return Status(Code::kAborted, "jaxccomp has been shut down");
  Result<Endpoint*> found = EndpointOf(site, call.device);
  if (!found.ok()) return found.status();
  Endpoint& endpoint = **found;
  Communicator& comm = *endpoint.communicator;
  if (!comm.broken.ok()) {
    return Status(comm.broken.code(), site.spec.ToString() + ": the communicator cannot be used "
                                          "after an earlier error: " + comm.broken.message());
  }
  if (site.program != nullptr) CloseProgram(*site.program);

  SiteAtEndpoint& state = site.state[&endpoint];
  std::shared_ptr<const Plan> plan = state.plan;
  if (plan == nullptr || site.spec.collective == Collective::kRaggedAlltoall) {
    Result<std::shared_ptr<const Plan>> made = MakePlan(site, endpoint, call, options_);
    if (!made.ok()) {
      Break(comm, made.status(), true);
      return made.status();
    }
    plan = state.plan = *made;
  }

  const Matcher::Posted posted = matcher_.Post(site, endpoint, call.run_id);
  Operation* const op = Insert(posted.key);
  if (op == nullptr) {
    const Status twice(Code::kInternal,
                       site.spec.ToString() + ": two collectives of one launch have the same "
                       "identity. Programs with collectives were compiled on several threads at "
                       "once; compile them one after the other (jit(f).lower().compile())");
    Break(comm, twice, true);
    return twice;
  }
  op->endpoint = &endpoint;
  op->text = site.text;
  op->driven = true;
  op->plan = std::move(plan);
  op->call = std::move(call);
  op->begun = op->last_progress = Clock::now();
  op->remote = comm.remote;
  remote_operations_ += op->remote;
  FillHeader(op, site, posted.launch);
  PrepareResults(site.spec, op->call, options_);

  Comparison* const comparison =
      posted.launch == nullptr ? nullptr : PendingComparison(endpoint, *posted.launch);
  if (comparison == nullptr) {
    Begin(op);
  } else {
    op->held = true;
    comparison->held.push_back(op);
  }
  if (posted.new_launch && options_.check_programs && comm.broken.ok()) {
    if (const Arrival* arrival = matcher_.FindOtherProgram(endpoint, *posted.launch)) {
      const Arrival other = *arrival;  // it is dropped on the way
      RefuseOtherProgram(endpoint, *posted.launch, other.header, other.payload);
    }
  }
  if (comparison != nullptr && comm.broken.ok()) Compare(endpoint, *comparison);
  return op;
}

// A new operation; null when that key is taken.
Operation* Engine::Impl::Insert(const MatchKey& key) {
  auto& slot = operations_[key];
  if (slot != nullptr) return nullptr;
  if (spare_.empty()) {
    slot = std::make_unique<Operation>();
  } else {
    slot = std::move(spare_.back());
    spare_.pop_back();
  }
  slot->key = key;
  return slot.get();
}

void Engine::Impl::FillHeader(Operation* op, const Site& site,
                              const Endpoint::Launch* launch) const {
  Header& h = op->header;
  h = site.header;
  if (!op->call.inputs.empty()) h.dtype = static_cast<uint8_t>(op->call.inputs[0].dtype);
  h.communicator = op->key.communicator;
  h.sequence = op->key.sequence;
  h.site = op->key.site;
  h.iteration = op->key.iteration;
  if (launch != nullptr && options_.check_programs) h.program_hash = launch->program_hash;
  h.source = op->endpoint->member;
  h.source_process = wire_.process();
  h.total_bytes = op->plan->total_bytes;
}

void Engine::Impl::Begin(Operation* op) {
  op->held = false;
  op->last_progress = Clock::now();
  std::vector<Arrival> arrivals = matcher_.Take(op->key);
  executor_.Begin(op);
  for (Arrival& a : arrivals) {
    if (op->failed || op->over) {
      Discard(a.announced);
      continue;
    }
    OnMessage(a.header, a.payload, a.announced);
  }
}

std::optional<Status> Engine::Impl::Start(Site& site, Call call,
                                          std::function<void(Status)> done) {
  std::unique_lock<std::mutex> lock(mutex_);
  Result<Operation*> posted = Post(site, std::move(call));
  if (!posted.ok()) return posted.status();
  Operation* const op = *posted;
  if (op->remote) EnsureProgress();
  if (!op->over) Drive(op, lock);
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
  if (!progress_.joinable() && !stopped_) progress_ = std::thread([this] { ProgressLoop(); });
}

void Engine::Impl::Recycle(Operation* op) {
  remote_operations_ -= op->remote;
  const auto found = operations_.find(op->key);
  std::unique_ptr<Operation> owned = std::move(found->second);
  operations_.erase(found);
  op->plan.reset();
  op->arrivals.clear();
  op->status = Status::Ok();
  op->waiting.clear();
  op->present.clear();
  op->failed = op->over = op->held = op->probed = op->roll_called = false;
  op->on_done = nullptr;
  if (spare_.size() < 256) spare_.push_back(std::move(owned));
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
  if (!op->failed) op->endpoint->recent.Add(op->key, op->text);
  if (op->driven) return;
  if (op->on_done != nullptr) {
    workers_.Run([done = std::move(op->on_done), status = std::move(op->status)] { done(status); });
  }
  Recycle(op);
}

// ---- The progress thread -----------------------------------------------------------------

void Engine::Impl::ProgressLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last_check = Clock::now();
  int64_t idle = 0;
  while (!stopped_) {
    if (operations_.empty() && !executor_.HasWork()) {
      if (wire_.HasRemote()) {
        Attend(lock);
      } else {
        wake_.wait(lock);
      }
      idle = 0;
      continue;
    }
    const auto now = Clock::now();
    if (now - last_check > milliseconds(20)) {
      last_check = now;
      CheckTimes(now);
    }
    if (inline_drivers_ > 0 && !executor_.HasWork()) {
      wake_.wait_for(lock, microseconds(200));
      continue;
    }
    if (Step(lock)) {
      idle = 0;
      lock.unlock();  // callers come first
      lock.lock();
      continue;
    }
    ++idle;
    if (remote_operations_ == 0) {
      wake_.wait_for(lock, milliseconds(20));  // only callers can bring news
    } else if (idle < 100) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else {
      // Some MPIs move a large message along only when they are called, many times for each.
      const bool transfers = wire_.HasRemoteTransfers();
      wake_.wait_for(lock, microseconds(idle < 1000 || transfers ? 50 : 500));
    }
  }
}

// While this process has nothing to do. Others may need it all the same: MPI ends a send only when
// its receiver calls MPI often enough, and probes and errors want to be heard.
void Engine::Impl::Attend(std::unique_lock<std::mutex>& lock) {
  if (inline_drivers_ == 0) wire_.Poll();
  const bool recent = Clock::now() - last_remote_ < kAttentive;
  wake_.wait_for(lock, recent ? microseconds(200) : microseconds(10000));
}

// Large chunks of several peers are coded on several cores while the progress thread tends the wire.
void Engine::Impl::CoderLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    coder_wake_.wait(lock, [&] { return stopped_ || executor_.HasComputations(); });
    if (stopped_) return;
    executor_.Run(lock);
  }
}

void Engine::Impl::OnBacklog() {
  if (stopped_ || most_coders_ == 0) return;
  if (coders_.size() < most_coders_) coders_.emplace_back([this] { CoderLoop(); });
  coder_wake_.notify_one();
}

void Engine::Impl::SetCoders(int64_t asked, int ranks_on_host) {
  constexpr int kMostLeftOver = 4;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // The ranks of a lone process are threads, each of which computes.
  const int left_over = processes_ == 1 ? 0 : count / std::max(ranks_on_host, 1) - 1;
  most_coders_ = static_cast<size_t>(asked >= 0 ? asked : std::clamp(left_over, 0, kMostLeftOver));
}

void Engine::Impl::Shutdown() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  // Who waits for this rank is told, at once or when it asks.
  std::set<const Communicator*> busy;
  double patience_seconds = options_.timeout_seconds;
  for (const auto& [key, op] : operations_) {
    if (op != nullptr && !op->over) busy.insert(op->endpoint->communicator);
  }
  for (Communicator* comm : registry_.All()) {
    if (!comm->broken.ok()) {
      patience_seconds = std::min(patience_seconds, kPartingSecondsAfterAnError);
    }
    Break(*comm, {Code::kAborted, "a rank has ended its program (jaxccomp was shut down)"},
          busy.contains(comm));
  }
  wake_.notify_all();
  while (inline_drivers_ > 0) wake_.wait(lock);
  lock.unlock();
  if (progress_.joinable()) progress_.join();
  coder_wake_.notify_all();
  for (std::thread& coder : coders_) coder.join();
  coders_.clear();
  lock.lock();
  // Which ends the last transfers, and with them their operations.
  wire_.Close(milliseconds(static_cast<int64_t>(patience_seconds * 1000)));
  lock.unlock();
  workers_.Stop();
}

}  // namespace jaxccomp
