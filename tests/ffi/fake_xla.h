// The part of XLA that calls a handler: the functions that the FFI's headers need, and call frames.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handlers/platform_handlers.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

// One run of one call site.
struct XLA_FFI_ExecutionContext {
  void* stream = nullptr;
  int32_t ordinal = 0;
  int64_t run_id = 0;
  void* state = nullptr;
};

namespace jaxccomp::testing {

inline const XLA_FFI_Api& FakeXla() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api a = {};
    a.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    a.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    a.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->errc, args->message};
    };
    a.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    a.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    a.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = args->ctx->stream;
      return nullptr;
    };
    a.XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args* args) -> XLA_FFI_Error* {
      args->device_ordinal = args->ctx->ordinal;
      return nullptr;
    };
    a.XLA_FFI_RunId_Get = [](XLA_FFI_RunId_Get_Args* args) -> XLA_FFI_Error* {
      args->run_id = args->ctx->run_id;
      return nullptr;
    };
    a.XLA_FFI_State_Set = [](XLA_FFI_State_Set_Args* args) -> XLA_FFI_Error* {
      args->ctx->state = args->state;
      return nullptr;
    };
    a.XLA_FFI_State_Get = [](XLA_FFI_State_Get_Args* args) -> XLA_FFI_Error* {
      args->state = args->ctx->state;
      return nullptr;
    };
    return a;
  }();
  return api;
}

// The attributes of a custom call.
class Attributes {
 public:
  void Add(std::string name, std::string text) {
    Row& row = Entry(std::move(name));
    row.text = std::move(text);
    row.type = XLA_FFI_AttrType_STRING;
  }
  void Add(std::string name, int64_t number) { Entry(std::move(name)).number = number; }
  void Add(std::string name, std::vector<int64_t> numbers) {
    Row& row = Entry(std::move(name));
    row.numbers = std::move(numbers);
    row.type = XLA_FFI_AttrType_ARRAY;
  }
  XLA_FFI_Attrs View();

 private:
  struct Row {
    std::string name, text;
    int64_t number = 0;
    std::vector<int64_t> numbers;
    XLA_FFI_AttrType type = XLA_FFI_AttrType_SCALAR;
    XLA_FFI_ByteSpan name_span = {}, text_span = {};
    XLA_FFI_Scalar scalar = {};
    XLA_FFI_Array array = {};
  };
  Row& Entry(std::string name) {
    rows_.push_back(std::make_unique<Row>());
    rows_.back()->name = std::move(name);
    return *rows_.back();
  }

  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
};

inline XLA_FFI_Attrs Attributes::View() {
  // XLA passes attributes sorted by name.
  std::sort(rows_.begin(), rows_.end(), [](auto& a, auto& b) { return a->name < b->name; });
  for (auto& row : rows_) {
    row->name_span = {row->name.data(), row->name.size()};
    row->text_span = {row->text.data(), row->text.size()};
    row->scalar = {XLA_FFI_DataType_S64, &row->number};
    row->array = {XLA_FFI_DataType_S64, row->numbers.size(), row->numbers.data()};
    types_.push_back(row->type);
    names_.push_back(&row->name_span);
    values_.push_back(row->type == XLA_FFI_AttrType_STRING  ? static_cast<void*>(&row->text_span)
                      : row->type == XLA_FFI_AttrType_ARRAY ? static_cast<void*>(&row->array)
                                                            : static_cast<void*>(&row->scalar));
  }
  return {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, static_cast<int64_t>(rows_.size()), types_.data(),
          names_.data(), values_.data()};
}

// Arrays of one dimension or of a given shape.
class Buffers {
 public:
  void Add(XLA_FFI_DataType dtype, void* data, int64_t count) {
    Add(dtype, data, std::vector<int64_t>{count});
  }
  void Add(XLA_FFI_DataType dtype, void* data, std::vector<int64_t> shape) {
    rows_.push_back(std::make_unique<Row>());
    Row& row = *rows_.back();
    row.shape = std::move(shape);
    row.buffer = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, dtype, data,
                  static_cast<int64_t>(row.shape.size()), row.shape.data()};
    pointers_.push_back(&row.buffer);
  }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  void** data() { return pointers_.data(); }

 private:
  struct Row {
    std::vector<int64_t> shape;
    XLA_FFI_Buffer buffer = {};
  };
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<void*> pointers_;
};

struct Outcome {
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_OK;
  std::string message;
};

// Calls a stage of a handler as XLA does. The frame is invalid after the return.
inline Outcome CallHandler(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*),
                           XLA_FFI_ExecutionStage stage, XLA_FFI_ExecutionContext* context,
                           Attributes attributes, Buffers arguments, Buffers results) {
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &FakeXla();
  frame.ctx = context;
  frame.stage = stage;
  frame.attrs = attributes.View();
  std::vector<XLA_FFI_ArgType> given(static_cast<size_t>(arguments.size()), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> taken(static_cast<size_t>(results.size()), XLA_FFI_RetType_BUFFER);
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, arguments.size(), given.data(),
                arguments.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, results.size(), taken.data(), results.data()};
  std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
  if (error == nullptr) return {};
  return {error->code, error->message};
}

}  // namespace jaxccomp::testing
