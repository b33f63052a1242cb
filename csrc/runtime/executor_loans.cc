// Messages that stay in the memory of their sender's device (runtime/loans.h).

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/code_block.h"
#include "runtime/compute.h"
#include "runtime/executor.h"

namespace jaxccomp {
namespace {

// What a return says (Header::tag).
enum : uint32_t { kOver = 0, kRefused = 1, kNotReached = 2 };

// A ticket or a return: lives until it is sent.
struct Word final : Completion {
  std::string text;
  void Done(Status) override { delete this; }
};

void SendWord(Transport& transport, int process, Header header, std::string text) {
  auto* word = new Word;
  word->text = std::move(text);
  header.payload_bytes = static_cast<int64_t>(word->text.size());
  const Piece piece{word->text.data(), header.payload_bytes};
  transport.Send(process, header, {&piece, header.payload_bytes > 0 ? size_t{1} : size_t{0}}, word);
}

}  // namespace

// What was borrowed to be passed on is on its way into a block of one's own.
struct Executor::Fetch final : Completion {
  Executor* executor = nullptr;
  Operation* op = nullptr;
  TaskId task = 0;
  uint64_t borrowed = 0;
  void Done(Status status) override {
    const std::unique_ptr<Fetch> self(this);
    executor->EndFetch(*this, std::move(status));
  }
};

// What was lent to one who refuses it is sent: first it is copied to pinned memory, then it travels.
struct Executor::Resend final : Completion {
  Executor* executor = nullptr;
  DeviceUse* use = nullptr;
  Loans::Lent lent;
  BufferPool::Buffer buffer;
  bool copied = false;
  void Done(Status status) override { executor->GoOn(this, std::move(status)); }
};

// ---- Lending -----------------------------------------------------------------------------

bool Executor::LendsTo(const Operation& op, int32_t code, int32_t peer) const {
  if (loans_.least_bytes() <= 0 || op.plan->code_bytes[code] < loans_.least_bytes() ||
      !loans_.LendsTo(op.endpoint->communicator->processes[peer])) {
    return false;
  }
  Header header = op.header;
  header.destination = peer;
  return !loans_.IsRefused(header);
}

bool Executor::ProvideShared(Operation* op, const PlannedTask& task) {
  Operation::Block& block = op->code[task.dst_code];
  const int64_t most_bytes = op->plan->code_bytes[task.dst_code];
  const auto parts = PartsOf(*op, task.sources[0]);
  if (block.buffer != nullptr || parts.empty() || parts.size() > LoanTicket::kMostPieces ||
      op->device == nullptr) {
    return false;
  }
  // What the rank sends to itself is copied by the CPU.
  const auto& peers = op->plan->code_peers[task.dst_code];
  if (peers.empty() || std::ranges::find(peers, op->endpoint->member) != peers.end()) return false;
  const Lies lies = HowShared(*op, task.dst_code, most_bytes);
  if (lies == Lies::kNowhere || (lies == Lies::kInOne && !task.packed && parts.size() > 1)) {
    return false;
  }
  auto code = std::make_unique<SharedCode>();
  code->packed = task.packed;
  code->referenced = !task.packed && !op->call.refs.empty();
  if (task.packed) {
    code->pieces = PieceInOne(/*packed=*/true, most_bytes);
  } else {
    for (const Part& part : parts) {
      const Codec* const codec = CodecFor(*op->plan, part.dtype);
      // References are those of what has a codec: blocks that mix both stay as they are.
      if (code->referenced && codec == nullptr) return false;
      const int64_t code_bytes = MostCodeBytes(codec, part.dtype, part.bytes);
      if (lies == Lies::kInOne) code->pieces = PieceInOne(/*packed=*/false, code_bytes);
      else code->pieces.push_back({EndOf(code->pieces), code_bytes});
    }
    code->found_bytes = static_cast<int64_t>(parts.size() * sizeof(FoundSize));
    code->found = op->device->codes.Take(code->found_bytes);
    if (code->found == nullptr) return false;
  }
  code->block = arenas_.Take(op->device->device, EndOf(code->pieces));
  if (code->block == nullptr) {
    op->device->codes.Give(std::move(code->found), code->found_bytes);
    return false;
  }
  code->memory = code->block->memory();
  if (lies == Lies::kInOne) PlacePayload(code.get());
  Share(op, &block, std::move(code));
  return true;
}

void Executor::SendLoan(Operation* op, TaskId task, Header header) {
  const PlannedTask& t = op->plan->tasks[task];
  const int process = op->endpoint->communicator->processes[t.peer];
  const Operation::Block& block = op->code[t.src_code];
  const Loans::Lent& lent = loans_.Lend(*block.shared, process, header);
  CollectiveStats& stats = (*stats_)[header.collective];
  stats.sent_bytes += lent.header.payload_bytes;
  stats.lent_bytes += lent.header.payload_bytes;
  if (process != wire_->process()) stats.remote_bytes += lent.header.payload_bytes;
  header.type = MessageType::kLoan;
  // Held open: to send may end the operation.
  ++op->in_flight;
  SendWord(*wire_->To(process), process, header, WriteTicket(lent.ticket));
  --op->in_flight;
  if (op->failed) return CheckOver(op);
  // The block is the engine's own: nobody has to wait for the borrower.
  TaskDone(op, task);
}

void Executor::LoanReturned(const Header& header) {
  TakeBack(header.site, header.source_process, header.tag);
}

void Executor::TakeBack(uint64_t number, int borrower, uint32_t why) {
  std::optional<Loans::Lent> lent = loans_.TakeBack(number, borrower);
  if (!lent || why == kOver) return;
  (*stats_)[lent->header.collective].lent_bytes -= lent->ticket.payload_bytes;
  if (why == kRefused) loans_.Refused(lent->header);
  if (why == kNotReached) loans_.Lose(borrower);
  auto again = std::make_unique<Resend>();
  again->executor = this;
  const std::byte* const memory = lent->block->memory() - lent->block->offset;
  const auto known = std::find_if(devices_.begin(), devices_.end(), [&](const auto& use) {
    return use->device == loans_.DeviceOf(lent->ticket.memory);
  });
  again->lent = std::move(*lent);
  const LoanTicket& ticket = again->lent.ticket;
  if (known != devices_.end()) {
    again->use = known->get();
    again->buffer = again->use->codes.Take(ticket.payload_bytes);
  }
  if (again->buffer == nullptr) {
    return listener_->OnLoanFailed(
        again->lent.header,
        {Code::kUnavailable, "out of pinned memory for a message that its receiver does not borrow"});
  }
  const auto runs = PayloadCopies(memory, ticket.pieces, ticket.packed, ticket.referenced,
                                  again->buffer.get());
  Resend* const started = again.release();
  ++started->use->computing;
  started->use->device->Copy(Device::kNoCall, runs, started);
}

void Executor::GoOn(Resend* again, Status status) {
  std::unique_ptr<Resend> self(again);
  const auto end = [&] {
    self->use->codes.Give(std::move(self->buffer), self->lent.ticket.payload_bytes);
  };
  if (self->copied) return end();
  --self->use->computing;
  self->copied = true;
  const Header header = self->lent.header;
  self->lent.block.reset();
  Transport* const transport = wire_->To(self->lent.borrower);
  if (!status.ok() || transport == nullptr) {
    end();
    if (!status.ok()) listener_->OnLoanFailed(header, status);
    return;
  }
  const Piece piece{self->buffer.get(), header.payload_bytes};
  const int borrower = self->lent.borrower;
  self.release();
  transport->Send(borrower, header, {&piece, 1}, again);
}

// ---- Borrowing ---------------------------------------------------------------------------

Result<Announced> Executor::AcceptLoan(const Header& header, std::span<const std::byte> payload) {
  const Result<uint64_t> id = loans_.Accept(header, payload);
  if (!id.ok()) return id.status();
  return Announced{header.source_process, *id, true};
}

const Header& Executor::HeaderOf(Announced loan) const { return loans_.Find(loan.id)->header; }

void Executor::Discard(Announced loan) { Return(loan.id, kOver); }

void Executor::Return(uint64_t id, uint32_t why) {
  const std::optional<Loans::Borrowed> borrowed = loans_.Drop(id);
  if (!borrowed) return;
  const int lender = borrowed->ticket.lender;
  if (lender == wire_->process()) return TakeBack(borrowed->ticket.number, lender, why);
  Header header = borrowed->header;
  std::swap(header.source, header.destination);
  header.type = MessageType::kReturn;
  header.source_process = wire_->process();
  header.site = borrowed->ticket.number;
  header.tag = why;
  returns_.emplace_back(lender, header);
}

void Executor::SendReturns() {
  for (const auto& [lender, header] : std::exchange(returns_, {})) {
    if (Transport* const transport = wire_->To(lender)) SendWord(*transport, lender, header, {});
  }
}

bool Executor::RefusesLoan(const Operation& op, Announced loan) {
  if (op.device == nullptr) {
    Return(loan.id, kRefused);
    return true;
  }
  const Result<const std::byte*> memory =
      loans_.Reach(op.device->device, loans_.Find(loan.id)->ticket);
  if (memory.ok() || memory.status().code() != Code::kUnavailable) return false;
  Return(loan.id, kNotReached);
  return true;
}

std::vector<Device::CopyRun> Executor::CopyToShare(Operation* op, SharedCode* code,
                                                   const std::byte* memory, Lies lies) {
  const std::vector<LoanPiece> from = code->pieces;
  if (lies == Lies::kInOne && !code->packed) {
    code->found_bytes = sizeof(FoundSize);
    code->found = op->device->codes.Take(code->found_bytes);
    if (code->found == nullptr) return {};
    code->pieces[0].offset = PieceInOne(/*packed=*/false, 0)[0].offset;
  } else {
    int64_t bytes = 0;
    for (LoanPiece& piece : code->pieces) {
      piece.offset = bytes;
      bytes += RoundUpPiece(piece.bytes);
    }
  }
  code->block = arenas_.Take(op->device->device, EndOf(code->pieces));
  if (code->block == nullptr) {
    op->device->codes.Give(std::move(code->found), code->found_bytes);
    return {};
  }
  code->memory = code->block->memory();
  std::vector<Device::CopyRun> runs;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].bytes == 0) continue;
    runs.push_back(
        {code->memory + code->pieces[i].offset, memory + from[i].offset, from[i].bytes});
  }
  if (lies == Lies::kInOne) {
    PlacePayload(code);
    if (!code->packed) runs.push_back(WriteHead(code));
  }
  return runs;
}

void Executor::StartBorrow(Operation* op, TaskId task, Announced loan) {
  const PlannedTask& t = op->plan->tasks[task];
  const LoanTicket ticket = loans_.Find(loan.id)->ticket;
  const auto refuse = [&](Status status) {
    Return(loan.id, kOver);
    Fail(op, std::move(status));
  };
  const Result<const std::byte*> memory = loans_.Reach(op->device->device, ticket);
  if (!memory.ok()) return refuse(memory.status());
  const bool referenced = !t.packed && !op->call.refs.empty();
  if (t.dst_code < 0 || ticket.packed != t.packed || ticket.referenced != referenced) {
    return refuse({Code::kDataLoss, "a ticket arrived that is not of such a message"});
  }
  Operation::Block& block = op->code[t.dst_code];
  auto code = std::make_unique<SharedCode>();
  code->pieces = ticket.pieces;
  code->packed = ticket.packed;
  code->referenced = ticket.referenced;
  block.used_bytes = ticket.payload_bytes;
  Started(op, task);
  if (op->plan->code_peers[t.dst_code].empty()) {
    code->memory = const_cast<std::byte*>(*memory);
    code->borrowed = loan.id;
    block.capacity_bytes = 0;
    block.shared = std::move(code);
    return TaskDone(op, task);
  }
  // Copied, so that it can be passed on: in shared memory where that is possible.
  std::vector<Device::CopyRun> runs;
  const Lies lies = HowShared(*op, t.dst_code, ticket.payload_bytes);
  if (lies == Lies::kInPieces || (lies == Lies::kInOne && ticket.pieces.size() == 1)) {
    runs = CopyToShare(op, code.get(), *memory, lies);
  }
  if (code->block != nullptr) {
    Share(op, &block, std::move(code));
  } else {
    if (!Provide(op, &block, CodePool(op), ticket.payload_bytes)) {
      return refuse({Code::kUnavailable,
                     "out of pinned memory for a message that is passed on; a smaller chunk_bytes "
                     "option needs less"});
    }
    runs = PayloadCopies(*memory, ticket.pieces, ticket.packed, ticket.referenced,
                         block.buffer.get());
  }
  RecordPeak(op);
  auto* fetch = new Fetch;
  fetch->executor = this;
  fetch->op = op;
  fetch->task = task;
  fetch->borrowed = loan.id;
  CountStarted(op);
  op->device->device->Copy(Device::kNoCall, runs, fetch);
}

void Executor::EndFetch(const Fetch& fetch, Status status) {
  Operation* const op = fetch.op;
  --op->in_flight;
  --op->computing;
  --op->device->computing;
  Return(fetch.borrowed, kOver);
  if (op->failed) return CheckOver(op);
  if (!status.ok()) return Fail(op, std::move(status));
  op->last_progress = Operation::Clock::now();
  TaskDone(op, fetch.task);
}

void Executor::DropShared(Operation* op, Operation::Block* block) {
  if (block->shared == nullptr) return;
  const std::unique_ptr<SharedCode> code = std::move(block->shared);
  if (code->borrowed != 0) return Return(code->borrowed, kOver);
  if (code->found != nullptr) op->device->codes.Give(std::move(code->found), code->found_bytes);
  op->held_bytes -= BufferPool::TakenBytes(block->capacity_bytes);
}

void Executor::ReturnBorrowed(Operation* op) {
  for (Operation::Block& block : op->code) {
    if (block.shared != nullptr && block.shared->borrowed != 0) DropShared(op, &block);
  }
}

}  // namespace jaxccomp
