#include "runtime/engine.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "runtime/executor.h"
#include "runtime/matcher.h"
#include "runtime/memory.h"
#include "runtime/registry.h"
#include "runtime/wire.h"
#include "runtime/workers.h"
#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

using Clock = Operation::Clock;
using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a caller drives its operation itself even while it progresses.
constexpr auto kLongestInline = milliseconds(5);
// How long an operation stands still before it asks its peers what they are doing.
constexpr auto kProbeAfter = milliseconds(500);
// How long a failed operation waits for transfers that still touch its memory.
constexpr auto kFailureGrace = std::chrono::seconds(2);
// A continuation of an XLA program may block until all devices of the process have come as far
// (in-process collectives of XLA do), so there must be a thread for each; they start on demand.
constexpr size_t kMostWorkers = 256;
constexpr int64_t kHugePagesFromBytes = 4 << 20;
constexpr size_t kLongestAbortText = 8 << 10;

void CopyText(char* field, size_t size, const std::string& text) {
  // What does not fit is left out in the middle: the kind and the source line matter most.
  const std::string fitting =
      text.size() < size ? text
                         : text.substr(0, size / 2 - 4) + "..." + text.substr(text.size() - size / 2);
  std::strncpy(field, fitting.c_str(), size - 1);
}

void CopyTensor(const Tensor& from, const Tensor& to) {
  if (from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<size_t>(std::min(from.bytes, to.bytes)));
  }
}

// A message that nobody waits for: lives until it is sent.
struct Notice final : Completion {
  std::string text;
  void Done(Status) override { delete this; }
};

}  // namespace

class Engine::Impl final : public Receiver, public Executor::Listener {
 public:
  Impl(int process, int processes)
      : processes_(processes),
        registry_(process, processes),
        wire_(process, std::make_unique<LocalTransport>(process, this)),
        executor_(&wire_, this, &stats_),
        workers_(kMostWorkers) {}
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

  const int processes_;
  std::mutex mutex_;
  Options options_;
  Stats stats_{};
  Registry registry_;
  Wire wire_;

 private:
  Result<Operation*> Post(Site& site, Call call);
  Result<Endpoint*> EndpointOf(Site& site, int64_t device);
  bool Step(std::unique_lock<std::mutex>& lock) {
    const bool polled = wire_.Poll();
    return executor_.Run(lock) || polled;
  }
  void Drive(Operation* op, std::unique_lock<std::mutex>& lock);
  void Recycle(Operation* op);

  void Break(Communicator& comm, const Status& why, bool tell);
  void OnAbort(const Header& header, std::span<const std::byte> payload);
  void Discard(Announced announced) { wire_.To(announced.process)->Discard(announced); }

  void ProgressLoop();
  void CheckTimes(Clock::time_point now);
  void Probe(Operation& op);
  std::string WhomItWaitsFor(const Operation& op) const;

  Executor executor_;
  Matcher matcher_;
  std::unordered_map<MatchKey, std::unique_ptr<Operation>, MatchKey::Hash> operations_;
  std::vector<std::unique_ptr<Operation>> spare_;
  int64_t remote_operations_ = 0;

  Workers workers_;
  std::thread progress_;
  std::condition_variable wake_;
  int inline_drivers_ = 0;
  bool stopped_ = false;
};

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
  auto& slot = operations_[posted.key];
  if (slot != nullptr) {
    const Status twice(Code::kInternal,
                       site.spec.ToString() + ": two collectives of one launch have the same "
                       "identity. Programs with collectives were compiled on several threads at "
                       "once; compile them one after the other (jit(f).lower().compile())");
    Break(comm, twice, true);
    return twice;
  }
  if (spare_.empty()) {
    slot = std::make_unique<Operation>();
  } else {
    slot = std::move(spare_.back());
    spare_.pop_back();
  }
  Operation* const op = slot.get();
  op->key = posted.key;
  op->endpoint = &endpoint;
  op->text = site.text;
  op->driven = true;
  op->plan = std::move(plan);
  op->call = std::move(call);
  op->begun = op->last_progress = Clock::now();
  op->remote = std::any_of(comm.processes.begin(), comm.processes.end(),
                           [&](int process) { return process != wire_.process(); });
  remote_operations_ += op->remote;

  Header& h = op->header;
  h = Header{};
  const OpSpec& spec = site.spec;
  h.collective = static_cast<uint8_t>(spec.collective);
  h.reduce_op = static_cast<uint8_t>(spec.reduce_op);
  if (!op->call.inputs.empty()) h.dtype = static_cast<uint8_t>(op->call.inputs[0].dtype);
  h.communicator = comm.id;
  h.sequence = posted.key.sequence;
  h.site = posted.key.site;
  h.iteration = posted.key.iteration;
  h.program_hash = options_.check_programs ? posted.program_hash : 0;
  h.signature = site.signature;
  h.source = endpoint.member;
  h.source_process = wire_.process();
  h.root = static_cast<int32_t>(spec.root);
  h.total_bytes = op->plan->total_bytes;
  CopyText(h.text, sizeof(h.text), *op->text);

  if (options_.huge_pages) {
    for (const Tensor& t : op->call.outputs) {
      if (t.bytes >= kHugePagesFromBytes) AdviseHugePages(t.data, t.bytes);
    }
  }
  if (spec.StartsFromOperands()) {
    // A ragged exchange writes into a copy of its second operand; others pass theirs on.
    const size_t first = spec.collective == Collective::kRaggedAlltoall ? 1 : 0;
    for (size_t i = 0; i < op->call.outputs.size(); ++i) {
      CopyTensor(op->call.inputs[first + i], op->call.outputs[i]);
    }
  }

  std::vector<Arrival> arrivals = matcher_.Take(op->key);
  executor_.Begin(op);
  for (Arrival& a : arrivals) {
    if (op->failed || op->over) {
      if (a.announced.process >= 0) Discard(a.announced);
      continue;
    }
    OnMessage(a.header, a.payload, a.announced);
  }
  if (posted.new_launch && options_.check_programs && !op->over) {
    const Endpoint::Launch& launch = endpoint.launches.back();
    if (auto other = matcher_.FindOtherProgram(endpoint, launch)) {
      executor_.Fail(op, MismatchError(endpoint, spec.ToString() + ", in a program of" +
                                           launch.program->ListOf(site.group, 8), *other));
    }
  }
  return op;
}

std::optional<Status> Engine::Impl::Start(Site& site, Call call,
                                          std::function<void(Status)> done) {
  std::unique_lock<std::mutex> lock(mutex_);
  Result<Operation*> posted = Post(site, std::move(call));
  if (!posted.ok()) return posted.status();
  Operation* const op = *posted;
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
  if (!progress_.joinable()) progress_ = std::thread([this] { ProgressLoop(); });
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

void Engine::Impl::Recycle(Operation* op) {
  remote_operations_ -= op->remote;
  const auto found = operations_.find(op->key);
  std::unique_ptr<Operation> owned = std::move(found->second);
  operations_.erase(found);
  op->plan.reset();
  op->arrivals.clear();
  op->status = Status::Ok();
  op->failed = op->over = op->probed = false;
  op->on_done = nullptr;
  if (spare_.size() < 256) spare_.push_back(std::move(owned));
}

void Engine::Impl::OnOver(Operation* op) {
  CollectiveStats& stats = stats_[op->header.collective];
  ++stats.calls;
  stats.value_bytes += op->plan->total_bytes;
  stats.seconds += duration<double>(Clock::now() - op->begun).count();
  if (op->driven) return;
  if (op->on_done != nullptr) {
    workers_.Run([done = std::move(op->on_done), status = std::move(op->status)] { done(status); });
  }
  Recycle(op);
}

// ---- Messages ----------------------------------------------------------------------------

void Engine::Impl::OnMessage(const Header& header, std::span<const std::byte> payload,
                             Announced announced) {
  if (header.type == MessageType::kAbort) return OnAbort(header, payload);
  Communicator* const comm = registry_.Find(header.communicator);
  if (comm != nullptr && !comm->broken.ok()) {
    if (announced.process >= 0) Discard(announced);
    return;
  }
  const auto found = operations_.find(MatchKey::Of(header));
  if (found != operations_.end() && found->second != nullptr && !found->second->over) {
    Operation* const op = found->second.get();
    const bool other_program = header.program_hash != 0 && op->header.program_hash != 0 &&
                               header.program_hash != op->header.program_hash;
    if (header.signature != op->header.signature || other_program) {
      if (announced.process >= 0) Discard(announced);
      std::string mine = *op->text;
      const Endpoint::Launch* launch = FindMismatch(*op->endpoint, header);
      if (launch != nullptr) {
        mine += ", in a program of" + launch->program->ListOf(launch->group, 8);
      }
      return executor_.Fail(op, MismatchError(*op->endpoint, mine, header));
    }
    if (header.type == MessageType::kData) executor_.Arrived(op, header, payload, announced);
    return;
  }
  if (header.type == MessageType::kData) matcher_.Keep(header, payload, announced);
  if (comm == nullptr || !options_.check_programs) return;
  for (const auto& endpoint : comm->endpoints) {
    if (endpoint->member != header.destination) continue;
    const Endpoint::Launch* launch = FindMismatch(*endpoint, header);
    if (launch == nullptr) continue;
    Break(*comm,
          MismatchError(*endpoint,
                        "a program of" + launch->program->ListOf(launch->group, 8), header),
          true);
  }
}

void Engine::Impl::OnAbort(const Header& header, std::span<const std::byte> payload) {
  const Status why(Code::kAborted,
                   std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
  Communicator* const comm = registry_.Find(header.communicator);
  if (comm == nullptr) return registry_.BreakUnborn(header.communicator, why);
  Break(*comm, why, false);
}

void Engine::Impl::OnPeerLost(int process, const Status& why) {
  std::set<Communicator*> affected;
  for (const auto& [key, op] : operations_) {
    Communicator* const comm = op->endpoint->communicator;
    const auto& members = comm->processes;
    // A process below 0: a message was broken so badly that its sender is unknown.
    const bool member = std::find(members.begin(), members.end(), process) != members.end();
    if (process < 0 || member) affected.insert(comm);
  }
  for (Communicator* comm : affected) Break(*comm, why, true);
}

// ---- Errors ------------------------------------------------------------------------------

void Engine::Impl::OnFailed(Operation* op) {
  Communicator& comm = *op->endpoint->communicator;
  if (!comm.broken.ok()) return;
  op->status = {op->status.code(), *op->text + ": " + op->status.message()};
  Break(comm, op->status, true);
}

void Engine::Impl::Break(Communicator& comm, const Status& why, bool tell) {
  if (!comm.broken.ok()) return;
  comm.broken = why;
  if (tell) {
    std::string text = why.message().substr(0, kLongestAbortText);
    for (const auto& endpoint : comm.endpoints) {
      text += "\n  (reported by " + comm.MemberName(endpoint->member) + ")";
      break;
    }
    Header header;
    header.type = MessageType::kAbort;
    header.communicator = comm.id;
    header.destination = -1;
    header.source = -1;
    header.source_process = wire_.process();
    for (int process : std::set<int>(comm.processes.begin(), comm.processes.end())) {
      Transport* const transport = wire_.To(process);
      if (process == wire_.process() || transport == nullptr) continue;
      auto* notice = new Notice;
      notice->text = text;
      header.payload_bytes = static_cast<int64_t>(text.size());
      const Piece piece{notice->text.data(), header.payload_bytes};
      transport->Send(process, header, {&piece, 1}, notice);
    }
  }
  // By key: the failure of one may end others.
  std::vector<MatchKey> hit;
  for (const auto& [key, op] : operations_) {
    if (op != nullptr && op->endpoint->communicator == &comm && !op->over) hit.push_back(key);
  }
  for (const MatchKey& key : hit) {
    if (auto found = operations_.find(key); found != operations_.end()) {
      executor_.Fail(found->second.get(), why);
    }
  }
  // Afterwards: a payload that is discarded looks delivered to an operation that has not failed.
  matcher_.Drop(comm.id, [this](Announced announced) { Discard(announced); });
}

std::string Engine::Impl::WhomItWaitsFor(const Operation& op) const {
  std::set<int> missing;
  for (size_t i = 0; i < op.waiting.size(); ++i) {
    if (op.waiting[i]) missing.insert(op.plan->tasks[i].peer);
  }
  std::string text;
  for (int member : missing) {
    text += (text.empty() ? "" : ", ") + op.endpoint->communicator->MemberName(member);
  }
  return text.empty() ? "its own transfers" : text;
}

void Engine::Impl::Probe(Operation& op) {
  op.probed = true;
  std::set<int> asked;
  for (size_t i = 0; i < op.waiting.size(); ++i) {
    const int peer = op.plan->tasks[i].peer;
    if (!op.waiting[i] || !asked.insert(peer).second) continue;
    const int process = op.endpoint->communicator->processes[peer];
    Transport* const transport = wire_.To(process);
    if (transport == nullptr) continue;
    Header header = op.header;
    header.type = MessageType::kProbe;
    header.destination = peer;
    header.payload_bytes = 0;
    transport->Send(process, header, {}, new Notice);
  }
}

void Engine::Impl::CheckTimes(Clock::time_point now) {
  std::vector<MatchKey> quiet, late;  // what is done about them may end operations
  for (const auto& [key, owned] : operations_) {
    Operation* const op = owned.get();
    if (op == nullptr || op->over) continue;
    if (op->failed) {
      // The caller must hear of it even if a dead peer holds a transfer open.
      if (op->on_done != nullptr && now - op->failed_at > kFailureGrace) {
        workers_.Run([done = std::move(op->on_done), status = op->status] { done(status); });
        op->on_done = nullptr;
      }
      continue;
    }
    if (!op->probed && now - op->last_progress > kProbeAfter) quiet.push_back(key);
    if (duration<double>(now - op->last_progress).count() > options_.timeout_seconds) {
      late.push_back(key);
    }
  }
  for (const MatchKey& key : quiet) {
    if (auto found = operations_.find(key); found != operations_.end()) Probe(*found->second);
  }
  for (const MatchKey& key : late) {
    const auto found = operations_.find(key);
    if (found == operations_.end()) continue;  // ended by the failure of another
    Operation* const op = found->second.get();
    executor_.Fail(op, {Code::kDeadlineExceeded,
                        "no progress for " + std::to_string(options_.timeout_seconds) +
                            " s; " + op->endpoint->communicator->MemberName(op->endpoint->member) +
                            " waits for " + WhomItWaitsFor(*op) +
                            ". They did not come to this operation: look for a rank that stopped, "
                            "or that skips it, or raise the timeout_seconds option"});
  }
}

// ---- The progress thread -----------------------------------------------------------------

void Engine::Impl::ProgressLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last_check = Clock::now();
  int64_t idle = 0;
  while (!stopped_) {
    if (operations_.empty() && !executor_.HasWork()) {
      wake_.wait(lock);
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
      wake_.wait_for(lock, microseconds(idle < 1000 ? 50 : 500));
    }
  }
}

void Engine::Impl::Shutdown() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  // Who waits for this rank is told; at the end of a program that went well nobody is.
  std::set<const Communicator*> busy;
  for (const auto& [key, op] : operations_) {
    if (op != nullptr && !op->over) busy.insert(op->endpoint->communicator);
  }
  for (Communicator* comm : registry_.All()) {
    Break(*comm, {Code::kAborted, "jaxccomp is shutting down"}, busy.contains(comm));
  }
  wake_.notify_all();
  while (inline_drivers_ > 0) wake_.wait(lock);
  lock.unlock();
  if (progress_.joinable()) progress_.join();
  lock.lock();
  wire_.Close();  // which ends the last transfers, and with them their operations
  lock.unlock();
  workers_.Stop();
}

// ---- The public face ---------------------------------------------------------------------

namespace {

std::mutex own_mutex;
std::unique_ptr<Engine>& Own() {
  // Never destroyed: XLA's threads may outlive static destruction.
  static auto* own = new std::unique_ptr<Engine>;
  return *own;
}

}  // namespace

Engine::Engine(int process, int processes) : impl_(new Impl(process, processes)) {}
Engine::~Engine() = default;

Engine& Engine::Get() {
  std::lock_guard<std::mutex> lock(own_mutex);
  if (Own() == nullptr) Own() = std::make_unique<Engine>(0, 1);
  return *Own();
}

Engine* Engine::Find() {
  std::lock_guard<std::mutex> lock(own_mutex);
  return Own().get();
}

Status Engine::Configure(int process, int processes) {
  std::lock_guard<std::mutex> lock(own_mutex);
  if (processes < 1 || process < 0 || process >= processes) {
    return {Code::kInvalidArgument, "process " + std::to_string(process) + " of " +
                                        std::to_string(processes) + " does not exist"};
  }
  if (Own() == nullptr) {
    Own() = std::make_unique<Engine>(process, processes);
  } else if (Own()->process() != process || Own()->processes() != processes) {
    return {Code::kFailedPrecondition,
            "the engine has been configured for another world; call jaxccomp.init() once, first"};
  }
  return Status::Ok();
}

Status Engine::UseRemote(const TransportFactory& make) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  if (impl_->wire_.HasRemote()) return Status::Ok();
  Result<std::unique_ptr<Transport>> made = make(impl_.get());
  if (!made.ok()) return made.status();
  impl_->wire_.SetRemote(std::move(*made));
  return Status::Ok();
}

bool Engine::HasRemote() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->wire_.HasRemote();
}
int Engine::process() const { return impl_->wire_.process(); }
int Engine::processes() const { return impl_->processes_; }

void Engine::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->registry_.SetDevices(devices);
}

Status Engine::AddCommunicator(const std::string& name, std::vector<int> processes) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->registry_.AddCommunicator(name, std::move(processes));
}

Status Engine::SetOption(std::string_view name, std::string_view value) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  Status status = jaxccomp::SetOption(&impl_->options_, name, value);
  if (status.ok() && name == "retain_memory" && impl_->options_.retain_memory) {
    RetainFreedMemory();
  }
  return status;
}

std::optional<Status> Engine::Start(Site& site, Call call, std::function<void(Status)> done) {
  return impl_->Start(site, std::move(call), std::move(done));
}

void Engine::Forget(Site& site) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  site.state.clear();
}

Stats Engine::GetStats() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->stats_;
}

void Engine::ResetStats() {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->stats_ = {};
}

void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace jaxccomp
