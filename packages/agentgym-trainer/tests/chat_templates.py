"""Chat templates as test data, written from the public formats of the models they are named after."""

from __future__ import annotations

QWEN25 = (
    "{%- if messages[0]['role'] == 'system' -%}<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n"
    "{%- else -%}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{%- endif -%}"
    "{%- for message in messages -%}{%- if not (loop.first and message.role == 'system') -%}"
    "{{ '\n<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '\n<|im_start|>assistant\n' }}{%- endif -%}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
QWEN3 = (
    "{%- set ns = namespace(last=-1) -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}{%- set text = message.content -%}"
    "{%- if message.role == 'assistant' and loop.index0 < ns.last and '</think>' in text -%}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
    "{{ '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
SILENT_SYSTEM = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Template, control tokens, end of turn, beginning of text.
FAMILIES = {
    "qwen2.5": (QWEN25, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "llama3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "gemma": (GEMMA, ["<bos>", "<start_of_turn>", "<end_of_turn>"], "<end_of_turn>", "<bos>"),
    "qwen3": (QWEN3, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "silent": (SILENT_SYSTEM, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
}
