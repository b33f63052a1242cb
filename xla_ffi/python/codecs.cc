#include "python/codecs.h"

#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "codec/frame.h"
#include "codec/measure.h"
#include "codec/registry.h"
#include "common/dynamic_library.h"
#include "python/check.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

py::list DTypeNames(DTypeSet dtypes) {
  py::list names;
  for (const FrameDType& type : FrameDTypes()) {
    if ((dtypes & SetOf(type.dtype)) != 0) names.append(std::string(type.name));
  }
  return names;
}

py::dict OptionRow(const CodecOption& o) {
  py::dict row;
  row["name"] = std::string(o.name);
  row["default"] = std::string(o.default_value);
  row["description"] = std::string(o.description);
  row["choices"] = std::vector<std::string>(o.choices.begin(), o.choices.end());
  row["minimum"] = o.min;
  row["maximum"] = o.max;
  return row;
}

py::list CodecRows() {
  py::list rows;
  for (const CodecInfo* info : CodecTable()) {
    py::dict row;
    row["name"] = std::string(info->name);
    row["description"] = std::string(info->description);
    row["ratio"] = std::string(info->ratio);
    row["error"] = std::string(info->error);
    row["lossless"] = info->lossless;
    row["missing"] = info->missing != nullptr ? info->missing() : std::string();
    row["dtypes"] = DTypeNames(info->dtypes);
    py::list options;
    for (const CodecOption& o : info->options) options.append(OptionRow(o));
    row["options"] = options;
    rows.append(row);
  }
  return rows;
}

std::shared_ptr<const Codec> Lookup(const std::string& spec) {
  auto codec = LookupCodec(spec);
  Check(codec.status());
  return *codec;
}

DType DTypeNamed(const std::string& name) {
  for (const FrameDType& type : FrameDTypes()) {
    if (type.name == name) return type.dtype;
  }
  throw py::value_error("unknown dtype " + name);
}

// The canonical text of a spec, and the codec's traits.
py::dict DescribeCodec(const std::string& spec) {
  const auto codec = Lookup(spec);
  py::dict row;
  row["spec"] = codec->traits().spec;
  row["lossless"] = codec->traits().lossless;
  row["fixed_rate"] = codec->traits().fixed_rate;
  row["one_pass_merge"] = codec->traits().one_pass_merge;
  row["dtypes"] = DTypeNames(codec->traits().dtypes);
  return row;
}

py::dict DescribeBound(const std::string& spec, const std::string& dtype) {
  const ErrorBound bound = Lookup(spec)->Bound(DTypeNamed(dtype));
  py::dict row;
  row["relative"] = bound.relative;
  row["block"] = bound.block;
  row["absolute"] = bound.absolute;
  row["block_values"] = bound.block_values;
  row["range"] = bound.range;
  row["keeps_nonfinite"] = bound.keeps_nonfinite;
  return row;
}

// The bytes of a contiguous buffer.
std::span<const std::byte> BytesOf(const py::buffer_info& info) {
  return {static_cast<const std::byte*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

// A Python buffer with `bytes` bytes; null for None. Throws ValueError for another size.
class Values {
 public:
  Values(const py::object& given, int64_t bytes, bool writable) {
    if (given.is_none()) return;
    info_ = py::reinterpret_borrow<py::buffer>(given).request(writable);
    if (info_.size * info_.itemsize != bytes) {
      throw py::value_error("the buffer has " + std::to_string(info_.size * info_.itemsize) +
                            " bytes, but the values have " + std::to_string(bytes));
    }
  }
  void* data() const { return info_.ptr; }

 private:
  py::buffer_info info_;
};

using Key = std::tuple<uint64_t, uint32_t, uint32_t>;

py::bytes Encode(const std::string& spec, const std::string& dtype, std::vector<int64_t> shape,
                 const py::buffer& values, const py::object& ref, const Key& key,
                 int64_t chunk_values, bool checksum) {
  auto header = MakeFrameHeader(spec, dtype, std::move(shape), chunk_values, checksum,
                                !ref.is_none());
  Check(header.status());
  const Values in(values, header->value_bytes(), false), given(ref, header->value_bytes(), false);
  const auto room = static_cast<size_t>(MaxFrameBytes(*header));
  // Uninitialised, so that untouched pages take no memory.
  const std::unique_ptr<std::byte[]> frame(new std::byte[room]);
  Result<int64_t> bytes = int64_t{0};
  {
    py::gil_scoped_release released;
    Workspace workspace;
    bytes = EncodeFrame(*header, in.data(), given.data(),
                        {std::get<0>(key), std::get<1>(key), std::get<2>(key)},
                        {frame.get(), room}, workspace);
  }
  Check(bytes.status());
  return {reinterpret_cast<const char*>(frame.get()), static_cast<size_t>(*bytes)};
}

py::dict ReadFrame(const py::buffer& frame) {
  const py::buffer_info info = frame.request();
  const auto header = ReadFrameHeader(BytesOf(info));
  Check(header.status());
  py::dict row;
  row["spec"] = header->codec->traits().spec;
  row["dtype"] = std::string(header->type->name);
  row["shape"] = py::tuple(py::cast(header->shape));
  row["value_bytes"] = header->value_bytes();
  row["chunks"] = header->chunks();
  row["chunk_values"] = header->chunk_values;
  row["checksum"] = header->checksum;
  row["delta"] = header->delta;
  return row;
}

void Decode(const py::buffer& frame, const py::object& ref, const py::buffer& values) {
  const py::buffer_info info = frame.request();
  const std::span<const std::byte> bytes = BytesOf(info);
  const auto header = ReadFrameHeader(bytes);
  Check(header.status());
  if (header->delta == ref.is_none()) {
    throw py::value_error(header->delta ? "the frame holds differences to a reference: give ref="
                                        : "the frame holds no differences to a reference: leave out ref=");
  }
  const Values out(values, header->value_bytes(), true), given(ref, header->value_bytes(), false);
  Status status;
  {
    py::gil_scoped_release released;
    Workspace workspace;
    status = DecodeFrame(*header, bytes, given.data(), out.data(), workspace);
  }
  if (status.code() == Code::kFailedPrecondition) throw py::value_error(status.message());
  Check(status);
}

py::dict MeasureCodec(const std::string& spec, const std::string& dtype, const py::buffer& values,
                      const py::object& ref, int64_t chunk_values, bool cached, double seconds) {
  const auto codec = Lookup(spec);
  MeasurePlan plan;
  plan.dtype = DTypeNamed(dtype);
  const py::buffer_info info = values.request();
  plan.count = info.size * info.itemsize / SizeBytes(plan.dtype);
  const Values given(ref, plan.count * SizeBytes(plan.dtype), false);
  plan.values = info.ptr;
  plan.ref = given.data();
  plan.chunk_values = std::min(chunk_values, plan.count);
  plan.cached = cached;
  plan.seconds = seconds;
  Result<Measurement> measured = Measurement{};
  {
    py::gil_scoped_release released;
    measured = Measure(*codec, plan);
  }
  Check(measured.status());
  py::dict row;
  row["value_bytes"] = measured->value_bytes;
  row["encoded_bytes"] = measured->encoded_bytes;
  row["encode_rate"] = measured->encode_rate;
  row["decode_rate"] = measured->decode_rate;
  row["merge_rate"] = measured->merge_rate;
  row["copy_rate"] = measured->copy_rate;
  return row;
}

}  // namespace

void DefineCodecs(py::module_& m) {
  m.def("codecs", &CodecRows);
  m.def("add_library_path", [](const std::string& name, const std::string& path) {
    AddLibraryPath(name, path);
  }, py::arg("name"), py::arg("path"));
  m.def("describe_codec", &DescribeCodec, py::arg("spec"));
  m.def("codec_bound", &DescribeBound, py::arg("spec"), py::arg("dtype"));
  m.def("encode_frame", &Encode, py::arg("spec"), py::arg("dtype"), py::arg("shape"),
        py::arg("values"), py::arg("ref"), py::arg("key"), py::arg("chunk_values"),
        py::arg("checksum"));
  m.def("read_frame", &ReadFrame, py::arg("frame"));
  m.def("decode_frame", &Decode, py::arg("frame"), py::arg("ref"), py::arg("values"));
  m.def("measure_codec", &MeasureCodec, py::arg("spec"), py::arg("dtype"), py::arg("values"),
        py::arg("ref"), py::arg("chunk_values"), py::arg("cached"), py::arg("seconds"));
}

}  // namespace jaxccomp
