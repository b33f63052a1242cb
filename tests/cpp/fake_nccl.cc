// NCCL and CUDA's driver, as far as jaxccomp calls them, between threads of one process: a library to
// be opened in their place.
//
// An operation blocks its stream until all its ranks have come, as NCCL's kernels do, and a GPU runs
// one at a time, so that orders which deadlock on a GPU do so here. Communicators are made, and work
// is queued, in the background: who does not ask until NCCL is done never sees the work begin.
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl.h"
#include "nccl/library.h"
#include "reduce/reduce.h"

namespace {

using jaxccomp::DType;
using jaxccomp::ReduceOp;
using jaxccomp::nccl::Config;
using jaxccomp::nccl::Reduction;
using jaxccomp::nccl::Type;
using jaxccomp::nccl::UniqueId;
using jaxccomp::testing::FakeNcclHooks;
using jaxccomp::testing::FakeNcclSetting;

constexpr int kSuccess = 0, kInternalError = 3, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

std::mutex mutex;                // of everything here
std::condition_variable changed;
FakeNcclHooks hooks;
int64_t version = 22707, fail_init_of_rank = -1, fail_async_after = -1, ranks_per_gpu = 1;
bool joins_alone = false;
int64_t aborted = 0;
std::string last_id;   // that a communicator was made with
std::map<int, bool> gpu_busy;
std::atomic<int64_t> spinning{0};

struct Call {
  enum class Kind { kBroadcast, kAllReduce, kReduce, kAllGather, kReduceScatter, kSend, kRecv };
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  Type type;
  Reduction op;
  int peer;   // or the root
};

struct Comm;

// The collectives of one group call, of all ranks.
struct Meeting {
  std::vector<std::shared_ptr<const std::vector<Call>>> calls;   // by rank
  int came = 0, left = 0;
};

struct Team {
  int ranks = 0, joined = 0;
  bool aborted = false;                          // by some rank, whose memory may be gone
  std::map<uint64_t, Meeting> meetings;          // by number
  struct Message { const Call* call; bool taken = false; };
  std::map<std::pair<int, int>, std::deque<Message*>> messages;   // by source and destination
};

std::map<std::string, std::shared_ptr<Team>> teams;

struct Launch {
  Comm* comm;
  void* stream;
  std::vector<Call> calls;
};

struct Comm {
  std::shared_ptr<Team> team;
  int rank = 0;
  bool aborted = false, ready = false;
  int error = kSuccess;
  uint64_t next_meeting = 0;
  int running = 0;
  std::deque<std::unique_ptr<Launch>> background;   // not yet on their streams
  int asked = 0;
};

thread_local int group_depth = 0;
thread_local std::vector<std::unique_ptr<Launch>> group;

int64_t SizeOf(Type type) {
  constexpr int64_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[static_cast<int>(type)];
}

DType DTypeOf(Type type) {
  constexpr DType kTypes[] = {DType::kInt8,   DType::kUInt8,   DType::kInt32,   DType::kUInt32,
                              DType::kInt64,  DType::kUInt64,  DType::kFloat16, DType::kFloat32,
                              DType::kFloat64, DType::kBFloat16};
  return kTypes[static_cast<int>(type)];
}

// Any address in a range can be touched where its first one can.
char* At(const void* address) { return static_cast<char*>(hooks.reach(address)); }

void ReduceAll(const std::vector<const Call*>& all, size_t first, size_t count, void* to) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin,
                               ReduceOp::kSum};
  const Call& call = *all.front();
  const int64_t size = SizeOf(call.type);
  std::vector<const void*> sources;
  for (const Call* each : all) sources.push_back(At(each->from) + first * size);
  std::vector<char> result(count * size);
  jaxccomp::Reduce(DTypeOf(call.type), kOps[static_cast<int>(call.op)], result.data(), sources,
                   static_cast<int64_t>(count),
                   call.op == Reduction::kMean ? static_cast<int64_t>(all.size()) : 1);
  std::memcpy(to, result.data(), result.size());
}

// Rank `rank`'s part of the i-th collective of a meeting, as bytes to be written once all have come.
std::vector<char> ResultOf(const std::vector<const Call*>& all, int rank) {
  const Call& own = *all[rank];
  const size_t bytes = own.count * SizeOf(own.type);
  std::vector<char> result;
  switch (own.kind) {
    case Call::Kind::kBroadcast:
      result.assign(At(all[own.peer]->from), At(all[own.peer]->from) + bytes);
      break;
    case Call::Kind::kReduce:
      if (rank != own.peer) break;
      [[fallthrough]];
    case Call::Kind::kAllReduce:
      result.resize(bytes);
      ReduceAll(all, 0, own.count, result.data());
      break;
    case Call::Kind::kReduceScatter:
      result.resize(bytes);
      ReduceAll(all, own.count * static_cast<size_t>(rank), own.count, result.data());
      break;
    case Call::Kind::kAllGather:
      for (const Call* each : all) {
        result.insert(result.end(), At(each->from), At(each->from) + bytes);
      }
      break;
    default: break;
  }
  return result;
}

bool Same(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.peer == b.peer;
}

// Waits, and says whether it happened before the communicator was aborted. Where another rank has aborted
// it nothing happens any more.
template <typename F>
bool Await(std::unique_lock<std::mutex>& lock, Comm* comm, F happened) {
  changed.wait(lock, [&] { return comm->aborted || (!comm->team->aborted && happened()); });
  return !comm->aborted;
}

void Collectives(std::unique_lock<std::mutex>& lock, Comm* comm, const std::vector<Call>& calls) {
  if (calls.empty()) return;
  Team& team = *comm->team;
  const uint64_t number = comm->next_meeting++;
  Meeting& meeting = team.meetings[number];
  meeting.calls.resize(team.ranks);
  meeting.calls[comm->rank] = std::make_shared<const std::vector<Call>>(calls);
  ++meeting.came;
  changed.notify_all();
  if (!Await(lock, comm, [&] { return meeting.came == team.ranks; })) return;
  std::vector<std::vector<char>> results;
  for (size_t i = 0; i < calls.size(); ++i) {
    std::vector<const Call*> all;
    for (const auto& each : meeting.calls) {
      if (i >= each->size() || !Same((*each)[i], calls[i])) {
        std::fprintf(stderr, "fake NCCL: ranks have come to different collectives\n");
        std::abort();   // real NCCL gives wrong values, or hangs
      }
      all.push_back(&(*each)[i]);
    }
    results.push_back(ResultOf(all, comm->rank));
  }
  // Nothing is written before all have read.
  ++meeting.left;
  changed.notify_all();
  if (!Await(lock, comm, [&] { return meeting.left >= team.ranks; })) return;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!results[i].empty()) std::memcpy(At(calls[i].to), results[i].data(), results[i].size());
  }
  if (++meeting.left == 2 * team.ranks) team.meetings.erase(number);
}

void Messages(std::unique_lock<std::mutex>& lock, Comm* comm, const std::vector<Call>& calls) {
  Team& team = *comm->team;
  std::deque<Team::Message> sent;
  for (const Call& call : calls) {
    if (call.kind != Call::Kind::kSend) continue;
    sent.push_back({&call});
    team.messages[{comm->rank, call.peer}].push_back(&sent.back());
  }
  changed.notify_all();
  for (const Call& call : calls) {
    if (call.kind != Call::Kind::kRecv) continue;
    auto& queue = team.messages[{call.peer, comm->rank}];
    if (!Await(lock, comm, [&] { return !queue.empty(); })) break;
    Team::Message* const message = queue.front();
    queue.pop_front();
    if (message->call->count != call.count) {
      std::fprintf(stderr, "fake NCCL: a message of another size\n");
      std::abort();
    }
    if (call.count > 0) std::memcpy(At(call.to), At(message->call->from), call.count);
    message->taken = true;
    changed.notify_all();
  }
  Await(lock, comm, [&] {
    for (const auto& message : sent) {
      if (!message.taken) return false;
    }
    return true;
  });
  for (auto& [ends, queue] : team.messages) {   // of one that was aborted
    if (ends.first != comm->rank) continue;
    std::erase_if(queue, [&](const Team::Message* m) {
      for (const auto& own : sent) {
        if (m == &own) return true;
      }
      return false;
    });
  }
}

// On the stream's thread: spins until all have come.
void Work(void* argument) {
  std::unique_ptr<Launch> launch(static_cast<Launch*>(argument));
  std::unique_lock lock(mutex);
  Comm* const comm = launch->comm;
  bool& busy = gpu_busy[hooks.gpu(launch->stream)];
  if (Await(lock, comm, [&] { return !busy; })) {
    busy = true;
    ++spinning;
    std::vector<Call> collectives, messages;
    for (const Call& call : launch->calls) {
      const bool message = call.kind == Call::Kind::kSend || call.kind == Call::Kind::kRecv;
      (message ? messages : collectives).push_back(call);
    }
    Collectives(lock, comm, collectives);
    if (!comm->aborted) Messages(lock, comm, messages);
    --spinning;
    busy = false;
  }
  --comm->running;
  changed.notify_all();
}

int EndGroup() {
  auto launches = std::exchange(group, {});
  std::lock_guard lock(mutex);
  for (auto& launch : launches) {
    Comm* const comm = launch->comm;
    if (!comm->ready) return kInvalidUsage;
    ++comm->running;
    comm->background.push_back(std::move(launch));
    comm->asked = 0;
  }
  return kInProgress;
}

int Add(void* handle, void* stream, const Call& call) {
  auto* const comm = static_cast<Comm*>(handle);
  if (group_depth == 0) return kInvalidUsage;
  for (auto& launch : group) {
    if (launch->comm == comm && launch->stream == stream) {
      launch->calls.push_back(call);
      return kInProgress;
    }
  }
  group.push_back(std::unique_ptr<Launch>(new Launch{comm, stream, {call}}));
  return kInProgress;
}

// ---- CUDA's driver -----------------------------------------------------------------------

struct Event {
  std::mutex mutex;
  std::condition_variable wake;
  uint64_t recorded = 0, reached = 0;
};

// As CUDA's, it lives on for as long as a stream has it.
using EventHandle = std::shared_ptr<Event>;

struct Recording {
  EventHandle event;
  uint64_t number;
};

struct Bytes {
  void* to;
  const void* from;   // null: zeros
  size_t count;
};

thread_local std::vector<void*> contexts;

void* ContextOfGpu(int gpu) { return reinterpret_cast<void*>(static_cast<intptr_t>(gpu) + 1); }

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))

EXPORT void fake_nccl_set_hooks(const FakeNcclHooks* given) { hooks = *given; }
EXPORT int64_t fake_nccl_spinning() { return spinning; }
EXPORT void fake_nccl_set(int setting, int64_t value) {
  std::lock_guard lock(mutex);
  switch (static_cast<FakeNcclSetting>(setting)) {
    case FakeNcclSetting::kVersion: version = value; break;
    case FakeNcclSetting::kFailInitOfRank: fail_init_of_rank = value; break;
    case FakeNcclSetting::kFailAsyncAfter: fail_async_after = value; break;
    case FakeNcclSetting::kRanksPerGpu: ranks_per_gpu = value; break;
    case FakeNcclSetting::kJoinsAlone: joins_alone = value != 0; break;
  }
}

EXPORT int64_t fake_nccl_aborted() {
  std::lock_guard lock(mutex);
  return aborted;
}
EXPORT const char* fake_nccl_last_id() { return last_id.c_str(); }

EXPORT int ncclGetVersion(int* out) {
  *out = static_cast<int>(version);
  return kSuccess;
}
EXPORT int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> next{0};
  std::snprintf(id->bytes, sizeof(id->bytes), "fake %d of %d", next++, getpid());
  return kSuccess;
}
EXPORT const char* ncclGetErrorString(int error) { return error == kRemoteError ? "remote" : "fake"; }
EXPORT const char* ncclGetLastError(void*) { return ""; }

EXPORT int ncclCommInitRankConfig(void** out, int ranks, UniqueId id, int rank, Config* config) {
  std::lock_guard lock(mutex);
  if (config->blocking != 0 || config->magic != 0xcafebeef) return kInvalidUsage;
  if (rank == fail_init_of_rank) return kInternalError;
  auto& team = teams[id.bytes];
  if (team == nullptr) team = std::make_shared<Team>();
  team->ranks = ranks;
  team->joined += joins_alone ? ranks : 1;
  last_id = id.bytes;
  auto* comm = new Comm;
  comm->team = team;
  comm->rank = rank;
  *out = comm;
  changed.notify_all();
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(void* handle, int* error) {
  auto* const comm = static_cast<Comm*>(handle);
  std::unique_lock lock(mutex);
  *error = comm->error;
  if (comm->error != kSuccess) return kSuccess;
  comm->ready = comm->team->joined >= comm->team->ranks;
  *error = comm->ready ? kSuccess : kInProgress;
  if (comm->background.empty()) return kSuccess;
  *error = kInProgress;
  if (comm->asked++ == 0) return kSuccess;   // has not come to it yet
  while (!comm->background.empty()) {
    auto launch = std::move(comm->background.front());
    comm->background.pop_front();
    if (fail_async_after >= 0 && fail_async_after-- == 0) comm->error = kRemoteError;
    void* const stream = launch->stream;
    Launch* const released = launch.release();
    lock.unlock();
    hooks.push(stream, Work, released);
    lock.lock();
  }
  *error = kSuccess;
  return kSuccess;
}

EXPORT int ncclCommAbort(void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  std::unique_lock lock(mutex);
  comm->aborted = comm->team->aborted = true;
  ++aborted;
  comm->running -= static_cast<int>(comm->background.size());
  comm->background.clear();
  changed.notify_all();
  // Its memory stays, as launches that no stream has come to still name it; for good, as streams may
  // outlast all that is static.
  static auto& gone = *new std::vector<std::unique_ptr<Comm>>;
  gone.emplace_back(comm);
  return kSuccess;
}
EXPORT int ncclCommFinalize(void*) { return kSuccess; }
EXPORT int ncclCommDestroy(void* handle) {
  auto* const comm = static_cast<Comm*>(handle);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return comm->running == 0; });
  lock.unlock();
  delete comm;
  return kSuccess;
}

EXPORT int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}
EXPORT int ncclGroupEnd() { return --group_depth == 0 ? EndGroup() : kSuccess; }

EXPORT int ncclBroadcast(const void* from, void* to, size_t n, Type type, int root, void* comm,
                         void* stream) {
  return Add(comm, stream, {Call::Kind::kBroadcast, from, to, n, type, Reduction::kSum, root});
}
EXPORT int ncclAllReduce(const void* from, void* to, size_t n, Type type, Reduction op, void* comm,
                         void* stream) {
  return Add(comm, stream, {Call::Kind::kAllReduce, from, to, n, type, op, 0});
}
EXPORT int ncclReduce(const void* from, void* to, size_t n, Type type, Reduction op, int root,
                      void* comm, void* stream) {
  return Add(comm, stream, {Call::Kind::kReduce, from, to, n, type, op, root});
}
EXPORT int ncclAllGather(const void* from, void* to, size_t n, Type type, void* comm,
                         void* stream) {
  return Add(comm, stream, {Call::Kind::kAllGather, from, to, n, type, Reduction::kSum, 0});
}
EXPORT int ncclReduceScatter(const void* from, void* to, size_t n, Type type, Reduction op,
                             void* comm, void* stream) {
  return Add(comm, stream, {Call::Kind::kReduceScatter, from, to, n, type, op, 0});
}
EXPORT int ncclSend(const void* from, size_t n, Type type, int peer, void* comm, void* stream) {
  return Add(comm, stream, {Call::Kind::kSend, from, nullptr, n, type, Reduction::kSum, peer});
}
EXPORT int ncclRecv(void* to, size_t n, Type type, int peer, void* comm, void* stream) {
  return Add(comm, stream, {Call::Kind::kRecv, nullptr, to, n, type, Reduction::kSum, peer});
}

EXPORT int cuStreamGetCtx(void* stream, void** context) {
  *context = ContextOfGpu(hooks.gpu(stream));
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
EXPORT int cuCtxGetDevice(int* device) {
  if (contexts.empty()) return 201;
  *device = static_cast<int>(reinterpret_cast<intptr_t>(contexts.back())) - 1;
  return 0;
}
EXPORT int cuDeviceGetUuid(unsigned char* uuid, int device) {
  std::memset(uuid, device / static_cast<int>(ranks_per_gpu), 16);
  return 0;
}
EXPORT int cuEventCreate(void** event, unsigned) {
  if (contexts.empty()) return 201;
  *event = new EventHandle(std::make_shared<Event>());
  return 0;
}
EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<EventHandle*>(event);
  return 0;
}
EXPORT int cuEventRecord(void* given, void* stream) {
  const EventHandle event = *static_cast<EventHandle*>(given);
  std::lock_guard lock(event->mutex);
  auto* const recording = new Recording{event, ++event->recorded};
  hooks.push(stream, [](void* argument) {
    const std::unique_ptr<Recording> r(static_cast<Recording*>(argument));
    std::lock_guard inner(r->event->mutex);
    r->event->reached = r->number;
    r->event->wake.notify_all();
  }, recording);
  return 0;
}
EXPORT int cuEventQuery(void* given) {
  const EventHandle event = *static_cast<EventHandle*>(given);
  std::lock_guard lock(event->mutex);
  return event->reached == event->recorded ? 0 : 600;
}
EXPORT int cuStreamWaitEvent(void* stream, void* given, unsigned) {
  const EventHandle event = *static_cast<EventHandle*>(given);
  std::lock_guard lock(event->mutex);
  auto* const recording = new Recording{event, event->recorded};
  hooks.push(stream, [](void* argument) {
    const std::unique_ptr<Recording> r(static_cast<Recording*>(argument));
    std::unique_lock inner(r->event->mutex);
    r->event->wake.wait(inner, [&] { return r->event->reached >= r->number; });
  }, recording);
  return 0;
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char, size_t count, void* stream) {
  auto* const bytes = new Bytes{reinterpret_cast<void*>(to), nullptr, count};
  hooks.push(stream, [](void* argument) {
    const std::unique_ptr<Bytes> b(static_cast<Bytes*>(argument));
    std::memset(At(b->to), 0, b->count);
  }, bytes);
  return 0;
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t count, void* stream) {
  auto* const bytes = new Bytes{reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), count};
  hooks.push(stream, [](void* argument) {
    const std::unique_ptr<Bytes> b(static_cast<Bytes*>(argument));
    std::memcpy(At(b->to), At(b->from), b->count);
  }, bytes);
  return 0;
}

}  // extern "C"
