#include "planner/simulation.h"

#include <algorithm>
#include <array>
#include <deque>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "planner/processors.h"

namespace jaxccomp {
namespace {

// Messages between hosts have a latency above 0, so events on one host do not affect events at the same time on others.
enum EventKind : int32_t {
  kJobOver,     // on the processors `rank`
  kSent,        // a send's message has left
  kHead,        // the message's first byte is at the receiver's link
  kArrived,     // the last byte is at the receiver, or the sender's processor has finished its work
};

// Events at the same time happen in this order, which is the same on every host.
struct Event {
  double time;
  int32_t kind;
  int32_t local_rank;
  int32_t source;       // distance of the sender, by host and rank
  TaskId task;
  int32_t rank;
  int64_t number = 0;   // kJobOver: state number of the processors when the event was computed

  auto Order() const { return std::tie(time, kind, local_rank, source, task, rank); }
  bool operator>(const Event& other) const { return Order() > other.Order(); }
};

enum JobKind : int32_t { kTaskJob, kSendJob, kReceiveJob };

struct Peer {
  int32_t rank = -1;        // a simulated rank
  TaskId task = kNoTask;    // the receive
  int32_t source = 0;
  bool same_host = false, same_process = false;
};

struct Job {
  int32_t kind;
  TaskId task;
  double seconds;
  int32_t source;
};

// The message of a receive.
struct Coming {
  double end = 0;           // the earliest time at which its last byte arrives
  int32_t sender = -1;
  TaskId send = kNoTask;
};

struct RankState {
  std::vector<int32_t> open_deps;
  std::vector<uint8_t> parts_open;   // of transfers: parts that have not ended
  std::vector<uint8_t> flags;
  std::vector<Peer> peers;           // of sends
  std::vector<Coming> coming;        // of receives
  std::vector<int32_t> block_uses;
  std::vector<uint8_t> block_held;
  std::vector<int32_t> lane_open;
  std::array<int32_t, 2> first_lane = {0, 1};
  int64_t held_bytes = 0;
  std::priority_queue<std::pair<TaskId, int64_t>, std::vector<std::pair<TaskId, int64_t>>,
                      std::greater<>> parked;   // lowest first
  std::deque<TaskId> ready;          // computations
  int running = 0;
  std::deque<Job> messages;          // processor work for messages, one after the other
  bool messages_busy = false;
  int64_t open_tasks = 0;
  double local_free = 0;             // time at which the link from ranks of the same host is free
  double end = 0;
};

constexpr uint8_t kReady = 1, kHeadCame = 2, kTaken = 4;

// Threads of an engine with its share of the host's cores (engine/coder_threads.h).
int ThreadsOf(const HostCost& host) {
  return 1 + std::clamp(host.cores / host.ranks - 1, 0, 4);
}

class Simulator {
 public:
  Simulator(std::vector<RankTasks> ranks, const Cluster& cluster, Symmetry symmetry,
            bool only_first_host)
      : tasks_(std::move(ranks)),
        cluster_(cluster),
        symmetry_(symmetry),
        first_only_(only_first_host),
        host_of_(cluster.HostOfRanks()) {
    const size_t hosts = cluster.hosts.size();
    const size_t simulated = first_only_ ? 1 : hosts;
    first_rank_.resize(hosts);
    for (size_t rank = host_of_.size(); rank-- > 0;) {
      first_rank_[host_of_[rank]] = static_cast<int>(rank);
    }
    up_free_.resize(simulated);
    down_free_.resize(simulated);
    run_.up_bytes.resize(hosts);
    run_.down_bytes.resize(hosts);
    const bool shared = cluster.one_machine;
    for (size_t i = 0; i < (shared ? 1 : simulated); ++i) {
      processors_.emplace_back(cluster.hosts[i].cores,
                               shared && first_only_ ? static_cast<int>(hosts) : 1);
    }
    numbers_.resize(processors_.size());
    state_.resize(tasks_.size());
  }

  Result<SimulatedRun> Run(double limit_seconds) {
    Status status = Match();
    if (!status.ok()) return status;
    for (size_t rank = 0; rank < state_.size(); ++rank) Prepare(rank);
    for (size_t rank = 0; rank < state_.size(); ++rank) Begin(static_cast<int32_t>(rank));
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (cluster_.call_seconds + event.time >= limit_seconds && !IsStale(event)) {
        run_.ended_early = true;
        run_.rank_seconds.assign(host_of_.size(), limit_seconds);
        return std::move(run_);
      }
      now_ = event.time;
      Handle(event);
    }
    for (const RankState& state : state_) {
      if (state.open_tasks > 0) {
        return Status(Code::kInternal, "the simulation of a schedule came to a standstill");
      }
    }
    return Finish();
  }

 private:
  int LocalOf(int32_t rank) const { return rank - first_rank_[host_of_[rank]]; }

  // Finds the receive of every send. A rank takes messages from another rank in the order of sending, so the n-th
  // send matches the n-th receive; the tags must agree.
  Status Match() {
    const auto ranks = static_cast<int64_t>(host_of_.size());
    const auto hosts = static_cast<int>(cluster_.hosts.size());
    const int per_host = cluster_.hosts[0].ranks;
    std::vector<std::unordered_map<int64_t, TaskId>> receives(state_.size());
    for (size_t rank = 0; rank < state_.size(); ++rank) {
      std::unordered_map<int32_t, uint32_t> counts;
      const RankTasks& tasks = tasks_[rank];
      state_[rank].peers.resize(static_cast<size_t>(tasks.count()));
      for (TaskId i = 0; i < tasks.count(); ++i) {
        const PricedTask& task = tasks.tasks[i];
        if (task.kind != TaskKind::kRecv) continue;
        const uint32_t tag = first_only_ ? counts[task.peer]++ : task.tag;
        receives[rank][static_cast<int64_t>(tag) * ranks + task.peer] = i;
      }
    }
    for (size_t r = 0; r < state_.size(); ++r) {
      const auto rank = static_cast<int32_t>(r);
      std::unordered_map<int32_t, uint32_t> counts;
      const RankTasks& tasks = tasks_[r];
      for (TaskId i = 0; i < tasks.count(); ++i) {
        const PricedTask& task = tasks.tasks[i];
        if (task.kind != TaskKind::kSend) continue;
        Peer& peer = state_[r].peers[i];
        const int from = host_of_[rank], to = host_of_[task.peer];
        const int distance = Distance(symmetry_, to, from, hosts);
        const int local = LocalOf(rank);
        peer.source = distance * static_cast<int32_t>(ranks) + local;
        peer.same_host = from == to;
        peer.same_process =
            peer.same_host && local / cluster_.ranks_per_process ==
                                  LocalOf(task.peer) / cluster_.ranks_per_process;
        peer.rank = first_only_ ? LocalOf(task.peer) : task.peer;
        const int32_t sender = first_only_ ? distance * per_host + local : rank;
        const uint32_t tag = first_only_ ? counts[task.peer]++ : task.tag;
        const auto found = receives[peer.rank].find(static_cast<int64_t>(tag) * ranks + sender);
        if (found == receives[peer.rank].end() ||
            tasks_[peer.rank].tasks[found->second].message_bytes != task.message_bytes) {
          return {Code::kInternal, "a schedule sends a message that no rank receives"};
        }
        peer.task = found->second;
      }
    }
    return Status::Ok();
  }

  void Prepare(size_t rank) {
    const RankTasks& tasks = tasks_[rank];
    RankState& state = state_[rank];
    const auto count = static_cast<size_t>(tasks.count());
    state.open_deps.resize(count);
    state.parts_open.resize(count);
    state.flags.resize(count);
    state.coming.resize(count);
    state.block_uses = tasks.block_uses;
    state.block_held.resize(tasks.block_bytes.size());
    state.lane_open = tasks.lane_tasks;
    state.open_tasks = tasks.count();
    run_.task_count += tasks.count();
    for (size_t i = 0; i < count; ++i) {
      state.open_deps[i] = tasks.tasks[i].dep_count;
      // A send: the uplink and its processor's work. A receive: the memory, the message, and the work of both
      // processors.
      state.parts_open[i] = tasks.tasks[i].kind == TaskKind::kSend ? 2 : 4;
    }
  }

  void Begin(int32_t rank) {
    const RankTasks& tasks = tasks_[rank];
    const RankState& state = state_[rank];
    const auto count = static_cast<size_t>(tasks.count());
    // Sends first: other ranks wait for them. No task ends in this loop, since events are handled after all ranks have
    // begun.
    for (const bool sends : {true, false}) {
      for (size_t i = 0; i < count; ++i) {
        const bool is_send = tasks.tasks[i].kind == TaskKind::kSend;
        if (state.open_deps[i] == 0 && is_send == sends) MakeReady(rank, static_cast<TaskId>(i));
      }
    }
  }

  // Whether jobs were added or removed after this event was computed. A newer event then replaces it.
  bool IsStale(const Event& event) const {
    return event.kind == kJobOver && event.number != numbers_[event.rank];
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case kJobOver: {
        if (IsStale(event)) return;
        const ProcessorJob job = processors_[event.rank].Take(now_);
        JobOver(job);
        Reschedule(event.rank);
        return;
      }
      case kSent: return PartOver(event.rank, event.task);
      case kHead: return Head(event);
      case kArrived: return PartOver(event.rank, event.task);
    }
  }

  // ---- Tasks ----

  void MakeReady(int32_t rank, TaskId task) {
    const PricedTask& t = tasks_[rank].tasks[task];
    RankState& state = state_[rank];
    if (t.kind == TaskKind::kSend) return Send(rank, task);
    if (t.kind == TaskKind::kRecv) {
      state.flags[task] |= kReady;
      return TryTake(rank, task);
    }
    state.ready.push_back(task);
    RunReady(rank);
  }

  void RunReady(int32_t rank) {
    RankState& state = state_[rank];
    const int threads = ThreadsOf(cluster_.hosts[host_of_[rank]]);
    while (state.running < threads && !state.ready.empty()) {
      const TaskId task = state.ready.front();
      state.ready.pop_front();
      if (!Admit(rank, task)) continue;
      ++state.running;
      AddJob(rank, kTaskJob, task, tasks_[rank].tasks[task].seconds, 0);
    }
  }

  // A ready receive takes its message once there is memory for it.
  void TryTake(int32_t rank, TaskId task) {
    RankState& state = state_[rank];
    uint8_t& flags = state.flags[task];
    if ((flags & kReady) == 0 || (flags & kHeadCame) == 0 || (flags & kTaken) != 0) return;
    if (!Admit(rank, task)) return;
    flags |= kTaken;
    PartOver(rank, task);
  }

  void TaskDone(int32_t rank, TaskId task) {
    const RankTasks& tasks = tasks_[rank];
    RankState& state = state_[rank];
    for (int32_t block : tasks.BlocksOf(task)) {
      if (--state.block_uses[block] == 0 && state.block_held[block] != 0) {
        state.held_bytes -= tasks.block_bytes[block];
        state.block_held[block] = 0;
      }
    }
    for (TaskId next : tasks.DependentsOf(task)) {
      if (--state.open_deps[next] == 0) MakeReady(rank, next);
    }
    if (--state.open_tasks == 0) state.end = now_;
    for (TaskId parked : LaneTaskDone(rank, tasks.tasks[task].lane)) MakeReady(rank, parked);
  }

  // ---- Memory: the rule of execution/memory_budget.h ----

  bool MayHold(const RankTasks& tasks, const RankState& state, int32_t lane, int64_t bytes) const {
    return bytes == 0 || lane <= state.first_lane[lane % tasks.lane_series] ||
           state.held_bytes + bytes <= tasks.early_bytes;
  }

  bool Admit(int32_t rank, TaskId task) {
    const RankTasks& tasks = tasks_[rank];
    RankState& state = state_[rank];
    int64_t needed_bytes = 0;
    for (int32_t block : tasks.BlocksOf(task)) {
      if (state.block_held[block] == 0) needed_bytes += tasks.block_bytes[block];
    }
    if (!MayHold(tasks, state, tasks.tasks[task].lane, needed_bytes)) {
      state.parked.emplace(task, needed_bytes);
      return false;
    }
    for (int32_t block : tasks.BlocksOf(task)) state.block_held[block] = 1;
    state.held_bytes += needed_bytes;
    return true;
  }

  std::vector<TaskId> LaneTaskDone(int32_t rank, int32_t lane) {
    const RankTasks& tasks = tasks_[rank];
    RankState& state = state_[rank];
    --state.lane_open[lane];
    int32_t& first = state.first_lane[lane % tasks.lane_series];
    const auto lanes = static_cast<int32_t>(state.lane_open.size());
    while (first < lanes && state.lane_open[first] == 0) first += tasks.lane_series;
    int64_t promised_bytes = 0;
    std::vector<TaskId> may_start;
    std::vector<std::pair<TaskId, int64_t>> still;
    while (!state.parked.empty()) {
      const auto [parked, bytes] = state.parked.top();
      if (MayHold(tasks, state, tasks.tasks[parked].lane, promised_bytes + bytes)) {
        promised_bytes += bytes;
        may_start.push_back(parked);
      } else if (tasks.lane_series == 1) {
        break;
      } else {
        still.emplace_back(parked, bytes);
      }
      state.parked.pop();
    }
    for (const auto& parked : still) state.parked.push(parked);
    return may_start;
  }

  // ---- Messages ----

  const PairCost& CostOf(const Peer& peer) const {
    if (peer.same_process) return cluster_.within_process;
    return peer.same_host ? cluster_.within_host : cluster_.between_hosts;
  }

  void Send(int32_t rank, TaskId task) {
    const PricedTask& t = tasks_[rank].tasks[task];
    const Peer& peer = state_[rank].peers[task];
    const PairCost& cost = CostOf(peer);
    const int host = host_of_[rank];
    double begin = now_, end = now_;
    if (peer.same_host) {
      run_.local_bytes += t.message_bytes;
      end = begin + static_cast<double>(t.message_bytes) / cost.bytes_per_second;
    } else {
      begin = std::max(now_, up_free_[host]);
      end = begin + static_cast<double>(t.message_bytes) / cluster_.hosts[host].up_rate;
      up_free_[host] = end;
      run_.up_bytes[host] += t.message_bytes;
    }
    PostMessage(rank, task, kSendJob, cost, t.message_bytes, 0);
    events_.push({end, kSent, LocalOf(rank), 0, task, rank});
    events_.push({begin + cost.latency_seconds, kHead, LocalOf(peer.rank), peer.source, peer.task,
                  peer.rank});
    state_[peer.rank].coming[peer.task] = {end + cost.latency_seconds, rank, task};
  }

  void Head(const Event& event) {
    const int32_t rank = event.rank;
    RankState& state = state_[rank];
    const Coming coming = state.coming[event.task];
    const Peer& peer = state_[coming.sender].peers[coming.send];
    const PairCost& cost = CostOf(peer);
    const int64_t bytes = tasks_[rank].tasks[event.task].message_bytes;
    double& free = peer.same_host ? state.local_free : down_free_[host_of_[rank]];
    const double rate =
        peer.same_host ? cost.bytes_per_second : cluster_.hosts[host_of_[rank]].down_rate;
    free = std::max(now_, free) + static_cast<double>(bytes) / rate;
    if (!peer.same_host) run_.down_bytes[host_of_[rank]] += bytes;
    const double end = peer.same_host ? free : std::max(free, coming.end);
    events_.push({end, kArrived, event.local_rank, event.source, event.task, rank});
    PostMessage(rank, event.task, kReceiveJob, cost, bytes, event.source);
    state.flags[event.task] |= kHeadCame;
    TryTake(rank, event.task);
  }

  void PostMessage(int32_t rank, TaskId task, JobKind kind, const PairCost& cost, int64_t bytes,
                   int32_t source) {
    const double seconds =
        cost.processor_seconds + static_cast<double>(bytes) * cost.processor_seconds_per_byte;
    RankState& state = state_[rank];
    state.messages.push_back({kind, task, seconds, source});
    if (!state.messages_busy) NextMessage(rank);
  }

  void NextMessage(int32_t rank) {
    RankState& state = state_[rank];
    state.messages_busy = !state.messages.empty();
    if (!state.messages_busy) return;
    const Job job = state.messages.front();
    state.messages.pop_front();
    AddJob(rank, job.kind, job.task, job.seconds, job.source);
  }

  // A part of a transfer is over.
  void PartOver(int32_t rank, TaskId task) {
    if (--state_[rank].parts_open[task] == 0) TaskDone(rank, task);
  }

  // ---- Processors ----

  int PoolOf(int32_t rank) const { return cluster_.one_machine ? 0 : host_of_[rank]; }

  void AddJob(int32_t rank, int32_t kind, TaskId task, double seconds, int32_t source) {
    const int pool = PoolOf(rank);
    processors_[pool].Add(now_, seconds, {.local_rank = LocalOf(rank), .kind = kind,
                                          .source = source, .task = task, .rank = rank});
    CountBusy(rank, kind, task, seconds);
    Reschedule(pool);
  }

  void Reschedule(int pool) {
    ++numbers_[pool];
    if (processors_[pool].idle()) return;
    events_.push({processors_[pool].NextEnd(), kJobOver, 0, 0, 0, pool, numbers_[pool]});
  }

  void JobOver(const ProcessorJob& job) {
    RankState& state = state_[job.rank];
    if (job.kind == kTaskJob) {
      --state.running;
      TaskDone(job.rank, job.task);
      RunReady(job.rank);
      return;
    }
    NextMessage(job.rank);
    PartOver(job.rank, job.task);
    if (job.kind == kSendJob) {
      const Peer& peer = state.peers[job.task];
      events_.push({now_ + CostOf(peer).latency_seconds, kArrived, LocalOf(peer.rank), peer.source,
                    peer.task, peer.rank});
    }
  }

  void CountBusy(int32_t rank, int32_t kind, TaskId task, double seconds) {
    BusySeconds& busy = run_.busy;
    if (kind != kTaskJob) {
      busy.messages += seconds;
      return;
    }
    switch (tasks_[rank].tasks[task].kind) {
      case TaskKind::kEncode: busy.encode += seconds; return;
      case TaskKind::kDecode:
      case TaskKind::kResidual: busy.decode += seconds; return;
      case TaskKind::kMerge: busy.merge += seconds; return;
      default: busy.copy += seconds; return;
    }
  }

  SimulatedRun Finish() {
    const size_t ranks = host_of_.size();
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t as = first_only_ ? static_cast<size_t>(LocalOf(static_cast<int32_t>(rank))) : rank;
      run_.rank_seconds.push_back(cluster_.call_seconds + state_[as].end);
    }
    if (first_only_) {
      const auto hosts = static_cast<int64_t>(run_.up_bytes.size());
      std::fill(run_.up_bytes.begin(), run_.up_bytes.end(), run_.up_bytes[0]);
      std::fill(run_.down_bytes.begin(), run_.down_bytes.end(), run_.down_bytes[0]);
      run_.local_bytes *= hosts;
      BusySeconds& busy = run_.busy;
      for (double* each : {&busy.encode, &busy.decode, &busy.merge, &busy.copy, &busy.messages}) {
        *each *= static_cast<double>(hosts);
      }
    }
    return std::move(run_);
  }

  const std::vector<RankTasks> tasks_;
  const Cluster& cluster_;
  const Symmetry symmetry_;
  const bool first_only_;
  const std::vector<int> host_of_;
  std::vector<int> first_rank_;      // by host
  std::vector<RankState> state_;
  std::vector<double> up_free_, down_free_;
  std::vector<Processors> processors_;
  std::vector<int64_t> numbers_;     // by processors: state number, which every change of their jobs increments
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  SimulatedRun run_;
  double now_ = 0;
};

}  // namespace

Result<SimulatedRun> Simulate(std::vector<RankTasks> ranks, const Cluster& cluster,
                              Symmetry symmetry, bool only_first_host, double limit_seconds) {
  return Simulator(std::move(ranks), cluster, symmetry, only_first_host).Run(limit_seconds);
}

}  // namespace jaxccomp
