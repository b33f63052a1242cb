#include "xla_collectives/collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "matching/call.h"
#include "matching/hash.h"
#include "matching/program.h"
#include "xla_collectives/byte_codec.h"

namespace jaxccomp {
namespace {

// Separates these operations from the program's own, on communicators of the same devices: the name of a thread that no
// Python thread has, and a tag that no program can give.
constexpr char kThread[] = "\nXLA";
constexpr int64_t kTag = int64_t{1} << 40;
constexpr char kWhere[] = "jit with shardings";
// More call sites of a communicator than a program has; beyond it, all are made anew.
constexpr size_t kMaxSites = 1024;

// An operation that has begun: whether it is over, and how it has ended.
class Pending {
 public:
  void End(Status status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    over_.notify_all();
  }
  Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    over_.wait(lock, [&] { return status_.has_value(); });
    return *status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<Status> status_;
};

// MPI's communicator of one rank. XLA uses it on one thread at a time.
struct RankGroup {
  std::vector<int64_t> devices;
  int rank = 0;
  std::string error;                     // why no operation can run on it; empty if they can
  std::atomic<bool> being_made = false;  // operations return at once
  int64_t number = 0, runs = 0;          // of the group in this process, and of its operations so far
  std::map<std::array<int64_t, 5>, std::unique_ptr<CallSite>> sites;
  std::vector<std::shared_ptr<Pending>> requests;   // not waited for
};

struct Request {
  RankGroup* group;
  std::shared_ptr<Pending> pending;
};

struct Groups {
  std::mutex mutex;
  std::vector<int64_t> made;            // the group that is being made; empty: none
  std::set<int64_t> alone;              // the devices of groups of one device
  std::vector<RankGroup*> ranks;        // its communicators so far
  std::vector<XlaRule> rules;
  int64_t count = 0;                    // of groups made so far
  std::atomic<bool> any = false;
};

Groups& All() {
  static auto* const all = new Groups;   // outlives XLA's static destructors
  return *all;
}

// The text stays valid until the thread's next call.
const char* Text(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

std::atomic<void (*)(const std::string&)> on_error = nullptr;

const char* Text(const Status& status) {
  if (status.ok()) return nullptr;
  if (auto* const call = on_error.load()) call(status.message());
  return Text(status.message());
}

std::string Shape(DType dtype, std::initializer_list<int64_t> dimensions) {
  std::string text(Name(dtype));
  text += "[";
  for (const int64_t each : dimensions) text.append(text.back() == '[' ? "" : ",").append(std::to_string(each));
  return text + "]";
}

Tensor TensorOf(const void* data, DType dtype, int64_t rows, int64_t count) {
  return {const_cast<void*>(data), dtype, rows, count * SizeBytes(dtype)};
}

// An operation in the words of MPI. `count`: elements of a block.
struct XlaOperation {
  RankGroup* group;
  Collective collective;
  DType dtype;
  int64_t count;
  ReduceOp reduce_op = ReduceOp::kSum;
  int destination = OpSpec::kNobody, source = OpSpec::kNobody;

  int64_t ranks() const { return std::ssize(group->devices); }
  std::array<int64_t, 5> key() const {
    const int64_t kind = static_cast<int64_t>(collective) * 256 + static_cast<int64_t>(reduce_op);
    return {kind, static_cast<int64_t>(dtype), count, destination, source};
  }
};

const char* NameOf(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce: return "allreduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllgather: return "allgather";
    case Collective::kSendrecv: return "alltoall";
    default: return "permute";
  }
}

// Returns the rule of the policy.
XlaRule RuleOf(const XlaOperation& op) {
  const int64_t blocks = op.collective == Collective::kReduceScatter ? op.ranks() : 1;
  const int64_t bytes = blocks * op.count * SizeBytes(op.dtype);
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const XlaRule& rule : all.rules) {
    const bool fits = (rule.operation == "*" || rule.operation == NameOf(op.collective)) &&
                      (!rule.dtype.has_value() || rule.dtype == op.dtype) && bytes >= rule.min_bytes &&
                      bytes <= rule.max_bytes && (rule.devices.empty() || rule.devices == op.group->devices);
    if (fits) return rule;
  }
  return {.operation = "*", .dtype = std::nullopt, .codec = "raw"};
}

Result<CallSite*> SiteOf(const XlaOperation& op) {
  auto& sites = op.group->sites;
  if (const auto known = sites.find(op.key()); known != sites.end()) return known->second.get();
  OpSpec spec;
  spec.collective = op.collective;
  spec.reduce_op = op.reduce_op;
  spec.groups = op.group->devices;
  spec.group_size = op.ranks();
  spec.ordered = true;
  spec.by_thread = true;
  spec.thread = kThread;
  spec.where = kWhere;
  spec.shapes = op.collective == Collective::kReduceScatter ? Shape(op.dtype, {op.ranks(), op.count})
                                                            : Shape(op.dtype, {op.count});
  if (spec.PointToPoint()) {
    spec.recv_shapes = spec.shapes;
    spec.tag = spec.recv_tag = kTag;
    if (op.collective != Collective::kRecv) spec.pairs.push_back(op.destination);
    if (op.collective != Collective::kSend) spec.pairs.push_back(op.source);
  }
  XlaRule rule = RuleOf(op);
  spec.codec = std::move(rule.codec);
  spec.algorithm = std::move(rule.algorithm);
  Result<std::unique_ptr<CallSite>> made = MakeCallSite(spec);
  if (!made.ok()) return made.status();
  std::shared_ptr<const Codec>& codec = (*made)->codec;
  if (codec != nullptr && !codec->traits().lossless && op.reduce_op != ReduceOp::kSum) {
    spec.codec = "raw";
    made = MakeCallSite(std::move(spec));
    if (!made.ok()) return made.status();
  } else if (codec != nullptr && op.dtype == DType::kOpaque8) {
    codec = MakeByteCodec(codec);
  }
  // The engine may use a call site until its operation is over.
  if (sites.size() >= kMaxSites && op.group->requests.empty()) sites.clear();
  return sites.emplace(op.key(), std::move(*made)).first->second.get();
}

// Starts the operation. The pending one may already be over.
Result<std::shared_ptr<Pending>> Start(const XlaOperation& op, std::vector<Tensor> inputs, std::vector<Tensor> outputs) {
  RankGroup& group = *op.group;
  if (!group.error.empty()) return Status(Code::kFailedPrecondition, group.error);
  Engine* const engine = Engine::Find();
  if (engine == nullptr) {
    return Status(Code::kFailedPrecondition, "jaxccomp's engine has not been started, or this process was forked");
  }
  const Result<CallSite*> site = SiteOf(op);
  if (!site.ok()) return site.status();
  Call call;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  call.device = group.devices[static_cast<size_t>(group.rank)];
  // Within a process, the run matches operations. XLA's own runs have 32 bits.
  const uint64_t run = Mix(static_cast<uint64_t>(group.number), static_cast<uint64_t>(++group.runs));
  call.run_id = static_cast<int64_t>(run >> 1 | uint64_t{1} << 62);
  auto pending = std::make_shared<Pending>();
  std::optional<Status> now = engine->Start(**site, std::move(call), [&]() -> Engine::Done {
    return [pending](Status status) { pending->End(std::move(status)); };
  });
  if (now.has_value()) pending->End(std::move(*now));
  return pending;
}

// After an error XLA frees the memory of all operations of the program. The engine fails the operations of a
// communicator together, so none of them lasts.
Status Drained(RankGroup& group, Status status) {
  if (status.ok()) return status;
  for (const std::shared_ptr<Pending>& each : std::exchange(group.requests, {})) {
    static_cast<void>(each->Wait());   // the caller gets the first error
  }
  return status;
}

Status Run(const XlaOperation& op, std::vector<Tensor> inputs, std::vector<Tensor> outputs) {
  Result<std::shared_ptr<Pending>> pending = Start(op, std::move(inputs), std::move(outputs));
  return Drained(*op.group, pending.ok() ? (*pending)->Wait() : pending.status());
}

Status Begin(const XlaOperation& op, std::vector<Tensor> inputs, std::vector<Tensor> outputs, MpiHandle* request) {
  Result<std::shared_ptr<Pending>> pending = Start(op, std::move(inputs), std::move(outputs));
  if (!pending.ok()) return Drained(*op.group, pending.status());
  op.group->requests.push_back(*pending);
  *request = reinterpret_cast<MpiHandle>(new Request{op.group, std::move(*pending)});
  return Status::Ok();
}

// ---- The functions of the table ----------------------------------------------------------

// Fills in the operation from the arguments of a call. Returns the text of an error; null if there is none.
const char* Read(MpiHandle comm, MpiHandle dtype, int64_t count, Collective collective, XlaOperation* op) {
  if (comm <= kMpiNoEngine) {
    return Text(
        "XLA made this communicator before jaxccomp was imported: start the program with `python -m jaxccomp run --xla "
        "PROGRAM`, or put `import jaxccomp` before the first computation");
  }
  if (dtype == 0 || dtype > kDTypeCount) return Text("XLA has passed a datatype of MPI that jaxccomp does not know");
  op->group = reinterpret_cast<RankGroup*>(comm);
  op->collective = collective;
  op->dtype = static_cast<DType>(dtype - 1);
  op->count = count;
  if (count >= 0) return nullptr;
  return Text(std::string(Info(collective).name) + ": XLA has passed the count " + std::to_string(count) +
              ": a block of this operation has 2 GiB or more, and XLA's MPI collectives have counts of 32 bits. Use more "
              "devices or smaller arrays");
}

const char* ReadReduceOp(MpiHandle handle, XlaOperation* op) {
  if (handle == 0 || handle > kReduceOpCount) return Text("XLA has passed a reduction of MPI that jaxccomp does not know");
  op->reduce_op = static_cast<ReduceOp>(handle - 1);
  return nullptr;
}

const char* CommSplit(int color, int key, MpiHandle* comm) {
  auto* const group = new RankGroup;
  *comm = reinterpret_cast<MpiHandle>(group);
  group->rank = key;
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.any = true;
  if (!all.made.empty() && color == all.made[0] && key >= 0 && key < std::ssize(all.made)) {
    group->devices = all.made;
    group->number = all.count;
    group->being_made = true;
    all.ranks.push_back(group);
    return nullptr;
  }
  if (key == 0 && all.alone.contains(color)) {
    group->devices = {color};
    return nullptr;
  }
  group->error = "XLA asks for the communicator of a group of devices that begins with device " + std::to_string(color) +
                 " (rank " + std::to_string(key) + "), and jaxccomp has not seen the program of this group when it was "
                 "compiled. Import jaxccomp before the first computation, and compile the program by jax.jit";
  return Text(group->error);
}

const char* CommRank(MpiHandle comm, int* rank) {
  *rank = reinterpret_cast<RankGroup*>(comm)->rank;
  return nullptr;
}

const char* CommSize(MpiHandle comm, int* size) {
  *size = static_cast<int>(std::max<ptrdiff_t>(1, std::ssize(reinterpret_cast<RankGroup*>(comm)->devices)));
  return nullptr;
}

const char* CommFree(MpiHandle comm) {
  auto* const group = reinterpret_cast<RankGroup*>(comm);
  Groups& all = All();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    std::erase(all.ranks, group);
  }
  delete group;
  return nullptr;
}

const char* Allreduce(const void* operand, void* result, int count, MpiHandle dtype, MpiHandle reduce_op, MpiHandle comm) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, count, Collective::kAllreduce, &op)) return error;
  if (const char* error = ReadReduceOp(reduce_op, &op)) return error;
  if (op.group->being_made) return std::memset(result, 0, count * SizeBytes(op.dtype)), nullptr;
  return Text(Run(op, {TensorOf(operand, op.dtype, op.count, op.count)}, {TensorOf(result, op.dtype, op.count, op.count)}));
}

const char* ReduceScatter(const void* operand, void* result, const int* counts, MpiHandle dtype, MpiHandle reduce_op,
                          MpiHandle comm) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, counts[0], Collective::kReduceScatter, &op)) return error;
  if (const char* error = ReadReduceOp(reduce_op, &op)) return error;
  return Text(Run(op, {TensorOf(operand, op.dtype, op.ranks(), op.ranks() * op.count)},
                  {TensorOf(result, op.dtype, op.count, op.count)}));
}

const char* Allgather(const void* operand, void* result, int count, MpiHandle dtype, MpiHandle comm) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, count, Collective::kAllgather, &op)) return error;
  return Text(Run(op, {TensorOf(operand, op.dtype, op.count, op.count)},
                  {TensorOf(result, op.dtype, op.ranks(), op.ranks() * op.count)}));
}

const char* Sendrecv(const void* operand, int sent_count, MpiHandle dtype, int destination, void* result,
                     int received_count, int source, MpiHandle comm) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, sent_count, Collective::kSendrecv, &op)) return error;
  if (received_count != sent_count) return Text("sendrecv: XLA has passed two different counts");
  op.destination = destination;
  op.source = source;
  return Text(Run(op, {TensorOf(operand, op.dtype, op.count, op.count)}, {TensorOf(result, op.dtype, op.count, op.count)}));
}

const char* Isend(const void* operand, int count, MpiHandle dtype, int destination, MpiHandle comm, MpiHandle* request) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, count, Collective::kSend, &op)) return error;
  op.destination = destination;
  const Tensor sent = TensorOf(operand, op.dtype, op.count, op.count);
  return Text(Begin(op, {sent}, {sent}, request));
}

const char* Irecv(void* result, int count, MpiHandle dtype, int source, MpiHandle comm, MpiHandle* request) {
  XlaOperation op;
  if (const char* error = Read(comm, dtype, count, Collective::kRecv, &op)) return error;
  op.source = source;
  return Text(Begin(op, {}, {TensorOf(result, op.dtype, op.count, op.count)}, request));
}

const char* Wait(MpiHandle* handle) {
  const std::unique_ptr<Request> request(reinterpret_cast<Request*>(*handle));
  *handle = 0;
  RankGroup& group = *request->group;
  std::erase(group.requests, request->pending);
  return Text(Drained(group, request->pending->Wait()));
}

}  // namespace

const XlaTable& XlaFunctions() {
  static constexpr XlaTable kTable = {&CommSplit, &CommRank, &CommSize, &CommFree, &Allreduce, &ReduceScatter,
                                      &Allgather, &Sendrecv, &Isend,    &Irecv,    &Wait};
  return kTable;
}

Status MakeXlaGroup(std::vector<int64_t> devices) {
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.made.empty()) return {Code::kInternal, "two groups of XLA's collectives are made at the same time"};
  if (devices.size() == 1) {
    all.alone.insert(devices[0]);
    return Status::Ok();
  }
  all.made = std::move(devices);
  ++all.count;
  return Status::Ok();
}

std::vector<int> EndXlaGroup() {
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<int> ranks;
  for (RankGroup* const group : all.ranks) {
    group->being_made = false;
    ranks.push_back(group->rank);
  }
  all.made.clear();
  all.ranks.clear();
  return ranks;
}

void SetXlaPolicy(std::vector<XlaRule> rules) {
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.rules = std::move(rules);
}

void AddXlaRule(XlaRule rule) {
  Groups& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.rules.insert(all.rules.begin(), std::move(rule));
}

void OnXlaError(void (*call)(const std::string& text)) { on_error = call; }

bool HasXlaGroups() { return All().any; }

}  // namespace jaxccomp
