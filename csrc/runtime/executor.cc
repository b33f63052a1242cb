#include "runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/compute.h"
#include "transport/pieces.h"

namespace jaxccomp {

void TransferDone::Done(Status status) {
  operation->executor->TransferDone(operation, task, std::move(status));
}

void Executor::Begin(Operation* op) {
  const Plan& plan = *op->plan;
  const size_t count = plan.tasks.size();
  op->executor = this;
  op->open_deps.resize(count);
  op->waiting.assign(count, 0);
  op->transfers.resize(count);
  op->scratch.resize(plan.scratch_bytes.size());
  op->code.resize(plan.code_bytes.size());
  for (size_t i = 0; i < op->scratch.size(); ++i) op->scratch[i].uses_left = plan.scratch_uses[i];
  for (size_t i = 0; i < op->code.size(); ++i) op->code[i].uses_left = plan.code_uses[i];
  op->started.clear();
  if (trace_.recording()) {
    op->started.resize(count);
    op->trace_number = trace_.NextOperation();
  }
  op->lane_open = plan.lane_tasks;
  op->first_lane = {0, 1};
  op->held_bytes = op->peak_bytes = 0;
  op->open_tasks = static_cast<int64_t>(count);
  for (size_t i = 0; i < count; ++i) {
    op->open_deps[i] = plan.tasks[i].dep_count;
    op->transfers[i].operation = op;
    op->transfers[i].task = static_cast<TaskId>(i);
  }
  for (size_t i = 0; i < count; ++i) {
    if (op->open_deps[i] == 0) MakeReady(op, static_cast<TaskId>(i));
  }
  CheckOver(op);  // a schedule may be empty
}

void Executor::MakeReady(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const bool transfer = t.kind == TaskKind::kSend || t.kind == TaskKind::kRecv;
  const bool light = transfer || t.bytes <= kLightBytes || op->device != nullptr;
  (light ? ready_ : heavy_).push_back({op, task, {}});
  if (heavy_.size() > 1) listener_->OnBacklog();
}

std::vector<Piece> Executor::PiecesOf(const Operation& op, PartRange range) const {
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<size_t>(range.count));
  for (int32_t i = 0; i < range.count; ++i) {
    const Part& part = op.plan->parts[range.first + i];
    std::byte* const at = AddressOf(op, part);
    // Neighbours in memory travel as one.
    if (!pieces.empty() &&
        static_cast<std::byte*>(pieces.back().data) + pieces.back().bytes == at) {
      pieces.back().bytes += part.bytes;
    } else {
      pieces.push_back({at, part.bytes});
    }
  }
  return pieces;
}

void Executor::StartTask(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  if (t.kind == TaskKind::kRecv) {
    const Arrival* const found = op->arrivals.Find(task);
    if (found == nullptr) {
      op->waiting[task] = 1;
      return;
    }
    if (!Admit(op, task, found->header.payload_bytes)) return;
    Arrival arrival = op->arrivals.Take(task);
    StartReceive(op, task, arrival);
    return;
  }
  if (op->device != nullptr && AwaitsCaller(*op, t)) {
    op->unready.push_back(task);
    return;
  }
  if (!Admit(op, task, 0)) return;
  Status status = Prepare(op, task, 0);
  if (!status.ok()) return Fail(op, std::move(status));
  Started(op, task);
  if (t.kind == TaskKind::kSend) return StartSend(op, task);
  if (op->device != nullptr) return StartOnDevice(op, task);
  status = Compute(*op, t);
  if (!status.ok()) return Fail(op, std::move(status));
  TaskDone(op, task);
}

void Executor::StartSend(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const Communicator& comm = *op->endpoint->communicator;
  const int process = comm.processes[t.peer];
  Transport* const transport = wire_->To(process);
  if (transport == nullptr) {
    return Fail(op, NoTransportTo(comm, t.peer));
  }
  Header header = op->header;
  header.destination = t.peer;
  header.tag = t.tag;
  header.lane = t.lane;
  const bool shared = t.src_code >= 0 && op->code[t.src_code].shared != nullptr;
  if (shared && !IsSentDirectly(*op, t)) return SendLoan(op, task, header);
  std::vector<Piece> pieces;
  if (t.src_code >= 0) {
    const Operation::Block& block = op->code[t.src_code];
    pieces = {{block.payload(), block.used_bytes}};
  } else {
    pieces = PiecesOf(*op, t.sources[0]);
  }
  header.payload_bytes = TotalBytes(pieces);
  CollectiveStats& stats = (*stats_)[header.collective];
  stats.sent_bytes += header.payload_bytes;
  if (process != wire_->process()) stats.remote_bytes += header.payload_bytes;
  if (shared) stats.direct_sent_bytes += header.payload_bytes;
  if (t.peer == op->endpoint->member) return SendCopy(op, task, header, pieces);
  ++op->in_flight;
  op->waiting[task] = 1;
  transport->Send(process, header, pieces, &op->transfers[task]);
}

void Executor::SendCopy(Operation* op, TaskId task, Header header,
                        const std::vector<Piece>& pieces) {
  struct Copy final : Completion {
    std::vector<std::byte> bytes;
    void Done(Status) override { delete this; }
  };
  auto* copy = new Copy;
  copy->bytes.resize(static_cast<size_t>(header.payload_bytes));
  Gather(pieces, copy->bytes.data());
  const Piece piece{copy->bytes.data(), header.payload_bytes};
  wire_->To(wire_->process())->Send(wire_->process(), header, {&piece, 1}, copy);
  TaskDone(op, task);
}

void Executor::Arrived(Operation* op, const Header& header, std::span<const std::byte> payload,
                       Announced announced) {
  const auto found = op->plan->receives.find(Plan::ReceiveKey(header.source, header.tag));
  if (found == op->plan->receives.end()) {
    if (announced.process >= 0) wire_->Discard(announced);
    return Fail(op, {Code::kFailedPrecondition,
                     op->endpoint->communicator->MemberName(header.source) +
                         " runs another algorithm or other sizes for this operation; all ranks "
                         "must use the same options and the same build"});
  }
  op->last_progress = Operation::Clock::now();
  if (announced.loan && RefusesLoan(*op, announced)) return;   // it comes as a payload
  const TaskId task = found->second;
  if (op->waiting[task] && Admit(op, task, header.payload_bytes)) {
    op->waiting[task] = 0;
    const PlannedTask& t = op->plan->tasks[task];
    // The payload lies in the transport's buffer: put it in its place without a second copy.
    if (announced.process < 0 && t.dst_code < 0) {
      Started(op, task);
      Status status = Prepare(op, task, header.payload_bytes);
      if (!status.ok()) return Fail(op, std::move(status));
      const std::vector<Piece> pieces = PiecesOf(*op, t.dst);
      if (TotalBytes(pieces) == header.payload_bytes) {
        Scatter(payload.data(), pieces);
        return TaskDone(op, task);
      }
    }
    Arrival arrival(wire_, header, payload, announced);
    return StartReceive(op, task, arrival);
  }
  op->waiting[task] = 0;
  if (op->arrivals.Put(task, Arrival(wire_, header, payload, announced))) return;
  if (announced.process >= 0) wire_->Discard(announced);
  Fail(op, {Code::kDataLoss, "a message of " + op->endpoint->communicator->MemberName(header.source) +
                                 " has come twice"});
}

void Executor::StartReceive(Operation* op, TaskId task, Arrival& arrival) {
  const PlannedTask& t = op->plan->tasks[task];
  const int64_t bytes = arrival.header.payload_bytes;
  Transport* const transport =
      arrival.announced.process < 0 ? nullptr : wire_->To(arrival.announced.process);
  auto refuse = [&](Status status) {
    if (arrival.announced.process >= 0) wire_->Discard(arrival.announced);
    Fail(op, std::move(status));
  };

  auto refuse_other_size = [&](int64_t expected_bytes) {
    refuse({Code::kFailedPrecondition,
            op->endpoint->communicator->MemberName(t.peer) + " sent " + std::to_string(bytes) +
                " bytes where " + std::to_string(expected_bytes) +
                " are expected: the shapes or sizes differ between the ranks"});
  };
  if (t.packed && bytes != op->plan->code_bytes[t.dst_code]) {
    return refuse_other_size(op->plan->code_bytes[t.dst_code]);
  }
  if (t.dst_code >= 0 && (bytes < 0 || bytes > op->plan->code_bytes[t.dst_code])) {
    return refuse({Code::kDataLoss, "an encoded message of " + std::to_string(bytes) +
                                        " bytes is too long for its values"});
  }
  if (arrival.announced.loan) return StartBorrow(op, task, arrival.announced);
  Started(op, task);
  if (transport != nullptr) ProvideDirect(op, task, arrival.announced, bytes);
  Status status = Prepare(op, task, bytes);
  if (!status.ok()) return refuse(std::move(status));
  std::vector<Piece> pieces;
  if (t.dst_code >= 0) {
    pieces = {{op->code[t.dst_code].payload(), bytes}};
  } else {
    pieces = PiecesOf(*op, t.dst);
    if (TotalBytes(pieces) != bytes) return refuse_other_size(TotalBytes(pieces));
  }
  if (transport == nullptr) {
    Scatter(arrival.payload.data(), pieces);
    return TaskDone(op, task);
  }
  ++op->in_flight;
  if (transport->InPlace(arrival.announced).empty()) {
    transport->Pull(arrival.announced, pieces, &op->transfers[task]);
  } else {
    heavy_.push_back({op, task, arrival.announced});
  }
}

void Executor::TransferDone(Operation* op, TaskId task, Status status) {
  --op->in_flight;
  op->waiting[task] = 0;
  if (op->device != nullptr) {
    status = EndOnDevice(op, op->plan->tasks[task], std::move(status));
  }
  if (op->failed) return CheckOver(op);
  if (!status.ok()) return Fail(op, std::move(status));
  op->last_progress = Operation::Clock::now();
  if (op->device == nullptr || !StartHead(op, task)) TaskDone(op, task);
}

void Executor::Started(Operation* op, TaskId task) {
  if (!op->started.empty()) op->started[task] = Operation::Clock::now();
}

void Executor::Ended(Operation* op, TaskId task) {
  if (op->started.empty() || !trace_.recording()) return;
  const PlannedTask& t = op->plan->tasks[task];
  trace_.Add({.operation = op->trace_number,
              .bytes = t.bytes,
              .lane = t.lane,
              .peer = t.kind == TaskKind::kSend || t.kind == TaskKind::kRecv ? t.peer : -1,
              .kind = t.kind,
              .collective = op->plan->algorithm->collective},
             op->started[task]);
}

void Executor::TaskDone(Operation* op, TaskId task) {
  Ended(op, task);
  const PlannedTask& t = op->plan->tasks[task];
  for (int32_t i : t.touched_scratch) Release(op, &op->scratch[i], ScratchPool(op));
  for (int32_t i : t.touched_codes) Release(op, &op->code[i], CodePool(op));
  op->held_bytes -= StagedBytes(*op, t);
  for (TaskId next : t.dependents) {
    if (--op->open_deps[next] == 0) MakeReady(op, next);
  }
  --op->open_tasks;
  --op->lane_open[t.lane];
  const int32_t series = op->plan->lane_series;
  int32_t& first_lane = op->first_lane[t.lane % series];
  while (first_lane < std::ssize(op->lane_open) && op->lane_open[first_lane] == 0) {
    first_lane += series;
  }
  Unpark(op);
  CheckOver(op);
}

void Executor::Fail(Operation* op, Status status) {
  if (op->failed || op->over) return;
  // Held open: what follows may end the transfers of this operation and of others.
  ++op->in_flight;
  op->failed = true;
  op->failed_at = Operation::Clock::now();
  op->status = std::move(status);
  // To discard a payload completes its sender, which may queue more.
  std::vector<Announced> unwanted;
  for (auto* queue : {&ready_, &heavy_}) {
    std::erase_if(*queue, [&](const Item& item) {
      if (item.op != op) return false;
      if (item.in_place.process >= 0) {
        unwanted.push_back(item.in_place);
        --op->in_flight;
      }
      return true;
    });
  }
  for (const auto& [of, arrival] : op->arrivals.all()) {
    if (arrival.announced.process >= 0) unwanted.push_back(arrival.announced);
  }
  op->arrivals.Clear();
  op->parked = {};
  op->unready.clear();
  for (Announced announced : unwanted) wire_->Discard(announced);
  listener_->OnFailed(op);
  --op->in_flight;
  CheckOver(op);
}

void Executor::WithdrawReceives(Operation* op) {
  const std::vector<PlannedTask>& tasks = op->plan->tasks;
  // By index, and held open: each may end the operation.
  ++op->in_flight;
  for (size_t i = 0; i < tasks.size() && i < op->transfers.size(); ++i) {
    if (tasks[i].kind != TaskKind::kRecv) continue;
    const int process = op->endpoint->communicator->processes[tasks[i].peer];
    Transport* const transport = wire_->To(process);
    if (transport == nullptr || transport->Withdraw(&op->transfers[i])) continue;
    transport->Freeze({Code::kUnavailable,
                       *op->text + " has failed while MPI received a message of process " +
                           std::to_string(process) +
                           " into its memory, which cannot be taken back from MPI: this process "
                           "exchanges no more messages. Start the program again"});
  }
  --op->in_flight;
  CheckOver(op);
}

void Executor::CheckOver(Operation* op) {
  if (op->over || (op->device != nullptr && !IsSettled(op))) return;
  if (op->in_flight > 0 || (!op->failed && op->open_tasks > 0)) return;
  op->over = true;
  for (auto [blocks, pool] :
       {std::pair{&op->scratch, ScratchPool(op)}, std::pair{&op->code, CodePool(op)}}) {
    for (Operation::Block& block : *blocks) {
      DropShared(op, &block);
      if (block.buffer != nullptr) pool->Give(std::move(block.buffer), block.capacity_bytes);
    }
    blocks->clear();
  }
  if (!op->failed && op->device == nullptr) FillUnwritten(*op);
  listener_->OnOver(op);
}

bool Executor::Run(std::unique_lock<std::mutex>& lock) {
  bool any = !returns_.empty();
  SendReturns();
  while (!ready_.empty()) {
    const Item item = ready_.front();
    ready_.pop_front();
    StartTask(item.op, item.task);
    any = true;
  }
  if (heavy_.empty()) return any;

  const Item item = heavy_.front();
  heavy_.pop_front();
  Operation* const op = item.op;
  if (item.in_place.process < 0 && !Admit(op, item.task, 0)) return true;
  const PlannedTask& task = op->plan->tasks[item.task];
  Status status;
  if (item.in_place.process >= 0) {
    Transport* const transport = wire_->To(item.in_place.process);
    const auto from = transport->InPlace(item.in_place);
    const std::vector<Piece> into =
        task.dst_code >= 0
            ? std::vector<Piece>{{op->code[task.dst_code].buffer.get(),
                                  op->code[task.dst_code].used_bytes}}
            : PiecesOf(*op, task.dst);
    lock.unlock();
    CopyPieces(from, into, op->plan->streams && task.dst_code < 0);
    lock.lock();
    transport->Discard(item.in_place);
  } else {
    Started(op, item.task);
    status = Prepare(op, item.task, 0);
    ++op->in_flight;
    if (status.ok()) {
      lock.unlock();
      status = Compute(*op, task);
      lock.lock();
    }
  }
  TransferDone(op, item.task, std::move(status));
  return true;
}

}  // namespace jaxccomp
