"""LangGraph: a graph of a model and a tool node, with a memory."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from task import API_KEY, BASE_URL, MODEL, OPENAI_TOOL, QUESTIONS, SAMPLING, SYSTEM, TOOL, Seen, add


def _graph():
    model = ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, max_retries=0, **SAMPLING)
    with_tools = model.bind_tools([OPENAI_TOOL])
    tool = StructuredTool.from_function(
        add, name=TOOL["name"], description=TOOL["description"], args_schema=TOOL["parameters"]
    )

    def ask(state: MessagesState):
        return {"messages": [with_tools.invoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([tool]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


def main() -> None:
    seen = Seen()
    graph, thread = _graph(), {"configurable": {"thread_id": "one"}, "recursion_limit": 8}
    for question in QUESTIONS:
        state = graph.invoke({"messages": [{"role": "user", "content": question}]}, thread)
        seen.answers.append(state["messages"][-1].content)
    for message in state["messages"]:
        if isinstance(message, AIMessage):
            seen.usage.append((message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]))
            seen.tool_calls += [(call["name"], call["args"]) for call in message.tool_calls]
    seen.tell()


main()
