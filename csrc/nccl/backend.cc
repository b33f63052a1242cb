#include "nccl/backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "matching/hash.h"

namespace jaxccomp::nccl {
namespace {

// Of a GPU's multiprocessors, those that the spinning operations of all its ranks may hold together:
// the engine's kernels, and the ranks' own, find the rest free.
constexpr int kMostCtasPerGpu = 32;

std::atomic<Backend*> own_backend{nullptr};
std::atomic<bool> shares_gpus{true};

Status Prefixed(const OpSpec& spec, const Status& status) {
  return {status.code(), spec.ToString() + ": " + status.message()};
}

}  // namespace

Result<std::unique_ptr<NcclCallSite>> NcclCallSite::Make(OpSpec spec) {
  spec.nccl = true;
  if (Status status = CheckSupported(spec, {}); !status.ok()) return status;
  auto made = std::make_unique<NcclCallSite>();
  made->spec_ = spec;
  Result<std::unique_ptr<CallSite>> site = MakeCallSite(std::move(spec));
  if (!site.ok()) return site.status();
  made->site_ = std::move(*site);
  return made;
}

Backend::Backend(Engine* engine, const Library* library, const Driver* driver)
    : engine_(engine), library_(*library), driver_(*driver) {}

Backend& Backend::Get() {
  // Never destroyed: XLA's threads may outlive static destruction.
  static auto* own = new Backend(&Engine::Get(), &Library::Get(), &Driver::Get());
  own_backend = own;
  return *own;
}

Backend* Backend::Find() { return own_backend; }

void Backend::SetSharesGpus(bool shares) { shares_gpus = shares; }

Result<Team*> Backend::TeamOf(NcclCallSite& site, const Engine::Place& place, void* context) {
  const OpSpec& spec = site.spec();
  int first = -1, second = place.member;
  if (spec.PointToPoint()) {
    const int peer = static_cast<int>(spec.pairs.at(0));
    if (peer == place.member || peer < 0 || peer >= static_cast<int>(place.members.size())) {
      return Status(Code::kInvalidArgument, spec.ToString() + ": rank " + std::to_string(peer) +
                                                " is no other rank of this communicator");
    }
    first = std::min(place.member, peer);
    second = std::max(place.member, peer);
  }
  std::lock_guard lock(mutex_);
  if (stopped_) return Status(Code::kAborted, "jaxccomp has been shut down");
  // The two ends of a message may live in one process.
  auto& team = teams_[{Mix(place.communicator, static_cast<uint64_t>(place.member)), first, second}];
  if (team == nullptr) {
    team = std::make_unique<Team>();
    team->communicator = place.communicator;
    team->context = context;
    if (spec.PointToPoint()) {
      team->seat = {place.member == first ? 0 : 1, 2};
      team->names = {place.members[static_cast<size_t>(first)],
                     place.members[static_cast<size_t>(second)]};
    } else {
      team->seat = {place.member, static_cast<int>(place.members.size())};
      team->names = place.members;
    }
  }
  return team.get();
}

Status Backend::Join(NcclCallSite& site, int64_t device, int64_t run_id, void* stream) {
  {
    std::lock_guard lock(site.mutex_);
    if (site.joined_.contains(device)) return Status::Ok();
  }
  Result<Engine::Place> place = engine_->FindPlace(*site.site_, device);
  if (!place.ok()) return place.status();
  void* context = nullptr;
  if (driver_.status().ok()) {
    Result<void*> found = driver_.ContextOf(stream);
    if (!found.ok()) return Prefixed(site.spec(), found.status());
    context = *found;
  }
  Result<Team*> team = TeamOf(site, *place, context);
  if (!team.ok()) return team.status();
  {
    std::lock_guard lock((*team)->joining);
    // Programs that are matched by their order meet for the communicator alone.
    const uint64_t program = site.spec().ordered ? 0 : place->program_hash;
    const bool met =
        (*team)->comm != nullptr && (program == 0 || (*team)->agreed.contains(program));
    if (!met) {
      Status status = Meet(site, *place, **team, device, run_id);
      if (!status.ok()) return status;
      (*team)->agreed.insert(program);
    }
  }
  std::lock_guard lock(site.mutex_);
  site.joined_[device] = *team;
  return Status::Ok();
}

Status Backend::Meet(NcclCallSite& site, const Engine::Place& place, Team& team, int64_t device,
                     int64_t run_id) {
  const OpSpec& spec = site.spec();
  const auto exchange = [&](Row row) {
    return spec.PointToPoint()
               ? ExchangeWith(*engine_, spec.communicator, place.member,
                              static_cast<int>(spec.pairs.at(0)), device, row)
               : Exchange(*engine_, *site.site_, place, device, run_id, row);
  };
  Row row;
  row.version = library_.version();
  if (!library_.status().ok()) {
    row.Blame(library_.status());
  } else if (!driver_.status().ok()) {
    row.Blame(driver_.status());
  } else {
    const Driver::Current current(driver_, team.context);
    Result<Gpu> gpu = driver_.CurrentGpu();
    if (gpu.ok()) row.gpu = *gpu;
    else row.Blame(gpu.status());
  }
  Result<std::vector<Row>> rows = exchange(row);
  if (!rows.ok()) return rows.status();
  if (team.comm != nullptr) return Status::Ok();
  Status judged = Judge(*rows, team.names);
  if (!judged.ok()) return Prefixed(spec, judged);
  return Create(site, team, *rows, exchange);
}

Status Backend::Create(NcclCallSite& site, Team& team, const std::vector<Row>& rows,
                       const std::function<Result<std::vector<Row>>(Row)>& exchange) {
  const int on_gpu = MostOnOneGpu(rows);
  {
    std::lock_guard lock(mutex_);
    if (on_gpu > 1 && shares_gpus) LetRanksShareGpus(library_.version(), team.seat.rank);
  }
  Row row;
  row.version = library_.version();
  if (team.seat.rank == 0) {
    const int outcome = library_.get_unique_id(&row.id);
    if (outcome != kSuccess) {
      row.Blame({Code::kUnavailable, library_.Describe(outcome, nullptr)});
    }
  }
  Result<std::vector<Row>> told = exchange(row);
  if (!told.ok()) return told.status();
  Status judged = Judge(*told, team.names);
  if (!judged.ok()) return Prefixed(site.spec(), judged);

  const Driver::Current current(driver_, team.context);
  Result<std::unique_ptr<Communicator>> made = Communicator::Create(
      library_, told->front().id, team.seat.rank, team.seat.ranks,
      on_gpu > 1 ? std::max(1, kMostCtasPerGpu / on_gpu) : 0, Deadline(),
      [&] { return engine_->StatusOf(team.communicator); });
  // The others would wait for this rank: the engine tells them.
  if (!made.ok()) {
    const Status why = Prefixed(site.spec(), made.status());
    Fail(team, why);
    return why;
  }
  team.comm = std::move(*made);
  return Status::Ok();
}

Backend::Clock::time_point Backend::Deadline() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(engine_->timeout_seconds()));
}

Status Backend::Run(NcclCallSite& site, const Call& call) {
  const OpSpec& spec = site.spec();
  if (Status status = CheckSupported(spec, call.inputs); !status.ok()) return status;
  if (Status status = Join(site, call.device, call.run_id, call.stream); !status.ok()) return status;
  Team* team = nullptr;
  {
    std::lock_guard lock(site.mutex_);
    team = site.joined_.at(call.device);
  }
  const auto usable = [&] { return engine_->StatusOf(team->communicator); };
  if (Status why = usable(); !why.ok()) {
    return {why.code(), spec.ToString() + ": the communicator cannot be used after an earlier error: " +
                            why.message()};
  }
  const Driver::Current current(driver_, team->context);
  Queued queued;
  queued.text = spec.ToString();
  for (void** event : {&queued.before, &queued.after}) {
    std::lock_guard lock(team->mutex);
    if (!team->events.empty()) {
      *event = team->events.back();
      team->events.pop_back();
      continue;
    }
    Result<void*> made = driver_.NewEvent();
    if (!made.ok()) {
      team->Release(queued);
      return made.status();
    }
    *event = *made;
  }
  Lane& lane = LaneOf(team->context);
  std::lock_guard lane_lock(lane.mutex);
  Status status;
  if (lane.event == nullptr) {
    Result<void*> made = driver_.NewEvent();
    status = made.status();
    if (made.ok()) lane.event = *made;
  } else if (lane.last_stream != call.stream) {
    status = driver_.Wait(call.stream, lane.event);
  }
  lane.last_stream = call.stream;
  if (status.ok()) status = driver_.Record(queued.before, call.stream);
  if (status.ok()) {
    const auto issue = [&](CommHandle comm) { return Issue(library_, comm, spec, team->seat, call); };
    status = team->comm->Run(issue, Deadline(), usable);
  }
  if (status.ok()) status = Complete(driver_, spec, team->seat, call);
  if (status.ok()) status = driver_.Record(queued.after, call.stream);
  if (status.ok()) status = driver_.Record(lane.event, call.stream);
  // What others have begun with this rank would never end.
  if (!status.ok()) {
    const Status why = Prefixed(spec, status);
    Fail(*team, why);
    std::lock_guard lock(team->mutex);
    team->Release(queued);
    return why;
  }
  {
    std::lock_guard lock(team->mutex);
    team->queued.push_back(std::move(queued));
  }
  std::lock_guard lock(mutex_);
  ++submitted_;
  Counts& counts = counts_[static_cast<size_t>(spec.collective)];
  ++counts.calls;
  CallCost cost;
  for (const Tensor& input : call.inputs) cost.operand_bytes += input.bytes;
  counts.value_bytes += cost.operand_bytes;
  if (site.row_ == nullptr) site.row_ = calls_.RowOf(spec, spec.ToString());
  site.row_->counts.Add(cost, false);
  if (!watch_.joinable() && !stopped_) watch_ = std::thread([this] { Watch(); });
  wake_.notify_all();
  return Status::Ok();
}

Lane& Backend::LaneOf(void* context) {
  std::lock_guard lock(mutex_);
  auto& lane = lanes_[context];
  if (lane == nullptr) lane = std::make_unique<Lane>();
  return *lane;
}

AllCounts Backend::counts() {
  std::lock_guard lock(mutex_);
  return counts_;
}

void Backend::ResetCounts() {
  std::lock_guard lock(mutex_);
  counts_ = {};
  calls_.Reset();
}

CallLog::Snapshot Backend::GetCallLog() {
  std::lock_guard lock(mutex_);
  return calls_.Take();
}

void Backend::Forget(NcclCallSite& site) { engine_->Forget(*site.site_); }

}  // namespace jaxccomp::nccl
