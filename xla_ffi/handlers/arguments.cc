#include "handlers/arguments.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct Missing {
  std::string names;
};

template <typename T>
T Get(const ffi::Dictionary& attributes, std::string_view name, Missing* missing) {
  auto value = attributes.get<T>(name);
  if (value.has_value()) return *value;
  missing->names += (missing->names.empty() ? "" : ", ") + std::string(name);
  return T{};
}

std::string Text(const ffi::Dictionary& attributes, std::string_view name, Missing* missing) {
  return std::string(Get<std::string_view>(attributes, name, missing));
}

std::vector<int64_t> Integers(const ffi::Dictionary& attributes, std::string_view name,
                              Missing* missing) {
  const auto span = Get<ffi::Span<const int64_t>>(attributes, name, missing);
  return {span.begin(), span.end()};
}

}  // namespace

std::optional<DType> FromXla(ffi::DataType type) {
  switch (type) {
    case ffi::PRED: return DType::kBool;
    case ffi::S8: return DType::kInt8;
    case ffi::S16: return DType::kInt16;
    case ffi::S32: return DType::kInt32;
    case ffi::S64: return DType::kInt64;
    case ffi::U8: return DType::kUInt8;
    case ffi::U16: return DType::kUInt16;
    case ffi::U32: return DType::kUInt32;
    case ffi::U64: return DType::kUInt64;
    case ffi::F16: return DType::kFloat16;
    case ffi::BF16: return DType::kBFloat16;
    case ffi::F32: return DType::kFloat32;
    case ffi::F64: return DType::kFloat64;
    case ffi::C64: return DType::kComplex64;
    case ffi::C128: return DType::kComplex128;
    default: break;
  }
  // A value of a float8 type takes one byte. XLA's releases pack values of narrower types differently.
  for (ffi::DataType narrow : {ffi::S1, ffi::S2, ffi::S4, ffi::U1, ffi::U2, ffi::U4,
                               ffi::F4E2M1FN}) {
    if (type == narrow) return std::nullopt;
  }
  if (ffi::ByteWidth(type) == 1) return DType::kOpaque8;
  return std::nullopt;
}

std::optional<DType> FindDType(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kDTypeTable[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

Result<bool> FromXla(const ffi::AnyBuffer& buffer, Tensor* tensor) {
  if (buffer.element_type() == ffi::TOKEN) return false;
  const std::optional<DType> dtype = FromXla(buffer.element_type());
  if (!dtype.has_value()) {
    return Status(Code::kUnimplemented,
                  "arrays of XLA type " + std::to_string(static_cast<int>(buffer.element_type())) +
                      " cannot be communicated; cast them to int8 first");
  }
  tensor->data = buffer.untyped_data();
  tensor->dtype = *dtype;
  tensor->bytes = static_cast<int64_t>(buffer.size_bytes());
  const auto dimensions = buffer.dimensions();
  tensor->rows = dimensions.size() > 0 ? dimensions[0] : 1;
  return true;
}

Result<OpSpec> SpecFromAttributes(const ffi::Dictionary& attributes) {
  Missing missing;
  OpSpec spec;
  Result<Collective> collective = ParseCollective(Text(attributes, "collective", &missing));
  if (!collective.ok()) return collective.status();
  spec.collective = *collective;
  const std::string reduce_op = Text(attributes, "reduce_op", &missing);
  spec.mean = reduce_op == "mean";
  if (!reduce_op.empty() && !spec.mean) {
    const std::optional<ReduceOp> op = ParseReduceOp(reduce_op);
    if (!op.has_value()) {
      return Status(Code::kInvalidArgument, "unknown reduction '" + reduce_op + "'");
    }
    spec.reduce_op = *op;
  }
  spec.root = Get<int64_t>(attributes, "root", &missing);
  spec.codec = Text(attributes, "codec", &missing);
  spec.mpi = Text(attributes, "backend", &missing) == "mpi";
  spec.algorithm = Text(attributes, "algorithm", &missing);
  spec.communicator = Text(attributes, "communicator", &missing);
  spec.groups = Integers(attributes, "groups", &missing);
  spec.group_size = Get<int64_t>(attributes, "group_size", &missing);
  spec.counts = Integers(attributes, "counts", &missing);
  spec.pairs = Integers(attributes, "pairs", &missing);
  spec.tag = Get<int64_t>(attributes, "tag", &missing);
  spec.recv_tag = Get<int64_t>(attributes, "recv_tag", &missing);
  spec.site = Get<int64_t>(attributes, "site", &missing);
  spec.reverse = Get<int64_t>(attributes, "reverse", &missing) != 0;
  const auto ordered = Get<int64_t>(attributes, "ordered", &missing);
  spec.ordered = ordered != 0;
  spec.by_thread = ordered == 2;
  spec.has_ref = Get<int64_t>(attributes, "has_ref", &missing) != 0;
  spec.feedback = Get<int64_t>(attributes, "feedback", &missing) != 0;
  spec.adds_residual = Get<int64_t>(attributes, "adds_residual", &missing) != 0;
  spec.status = Get<int64_t>(attributes, "status", &missing) != 0;
  spec.shapes = Text(attributes, "shapes", &missing);
  spec.recv_shapes = Text(attributes, "recv_shapes", &missing);
  spec.where = Text(attributes, "where", &missing);
  spec.program = Text(attributes, "program", &missing);
  spec.thread = Text(attributes, "thread", &missing);
  const size_t pairs = spec.collective == Collective::kSendrecv ? 2 : spec.PointToPoint() ? 1 : 0;
  if (missing.names.empty() && spec.pairs.size() < pairs) missing.names = "pairs";
  if (!missing.names.empty()) {
    return Status(Code::kInvalidArgument,
                  "a call of jaxccomp_collective lacks the attributes " + missing.names +
                      ": it was lowered by another version of jaxccomp");
  }
  return spec;
}

}  // namespace jaxccomp
