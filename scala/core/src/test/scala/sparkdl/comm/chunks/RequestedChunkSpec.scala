// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger

import io.netty.buffer.{AbstractByteBufAllocator, ByteBuf, UnpooledByteBufAllocator}
import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.buffer.{ManagedBuffer, NioManagedBuffer}
import org.apache.spark.network.protocol.StreamFailure

import sparkdl.comm.transport.{Chunk, ChunkPeer, MessagePart}

/** Tests of chunks that cannot be read and messages that cannot be written. */
class RequestedChunkSpec extends AnyFunSuite {

  /** Allocator that runs out of memory once it is `isExhausted`. */
  private final class Memory extends AbstractByteBufAllocator {
    private val all = UnpooledByteBufAllocator.DEFAULT
    var isExhausted = false
    override def newHeapBuffer(bytes: Int, most: Int): ByteBuf = all.heapBuffer(bytes, most)
    override def newDirectBuffer(bytes: Int, most: Int): ByteBuf =
      if (isExhausted) throw new OutOfMemoryError("direct memory")
      else all.directBuffer(bytes, most)
    override def isDirectBufferPooled: Boolean = false
  }

  /**
   * Source of a block, with a count of its open handles.
   *
   * @param broken thrown when the block is read
   * @param unsendable thrown when a part is given to Spark's encoder
   */
  private final class Block(
      broken: Option[Throwable] = None,
      unsendable: Option[Throwable] = None
  ) extends ChunkSource {
    var opened = Vector.empty[Long]
    var open = 0
    var isLocked = false

    override def has(chunk: Chunk): Boolean = true
    override def open(chunk: Chunk): Option[ManagedBuffer] =
      if (isLocked) None
      else {
        opened :+= chunk.offset
        open += 1
        Some(new NioManagedBuffer(ByteBuffer.allocate(chunk.length)) {
          override def convertToNetty(): AnyRef = {
            broken.foreach(throw _)
            if (unsendable.isDefined) this else super.convertToNetty()
          }
          override def retain(): ManagedBuffer = {
            unsendable.foreach(throw _)
            super.retain()
          }
          override def release(): ManagedBuffer = {
            open -= 1
            this
          }
        })
      }
  }

  private final class TestSend(block: Block) {
    val memory = new Memory
    val channel = new EmbeddedChannel
    val underway = new AtomicInteger
    var ends = Vector.empty[String]
    private val unconfirmed = new UnconfirmedSends
    private val answer =
      new RequestedChunk(
        7,
        Chunk(1, "block", 100, 30),
        ChunkPeer("there", 1, "1"),
        block,
        channel,
        unconfirmed,
        underway
      )
    channel.config.setAllocator(memory)
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => unconfirmed.end())

    def send(offset: Int): Unit =
      answer.send(offset, 10)(
        arrived => ends :+= s"$offset $arrived",
        () => ends :+= s"$offset refused"
      )
  }

  test("a block is opened on the connection's event loop, and released when its part is sent") {
    val block = new Block
    val sending = new TestSend(block)
    sending.send(10)
    assert(block.opened.isEmpty && sending.underway.get === 1)
    sending.channel.runPendingTasks()
    assert(
      block.opened === Seq(110) && block.open === 0 && sending.underway.get === 0 && sending.ends.isEmpty
    )
  }

  test("parts of a locked block are sent once it is unlocked, in order") {
    val block = new Block
    val sending = new TestSend(block)
    block.isLocked = true
    for (offset <- Seq(0, 10)) {
      sending.send(offset)
      sending.channel.runPendingTasks()
    }
    assert(block.opened.isEmpty && sending.underway.get === 2 && sending.ends.isEmpty)
    block.isLocked = false
    sending.send(20)
    Nodes.eventually("all are sent") {
      sending.channel.runPendingTasks()
      sending.underway.get == 0
    }
    assert(block.opened === Seq(100, 110, 120) && block.open === 0 && sending.ends.isEmpty)
  }

  for (cause <- Seq(new IOException("a bad sector"), new OutOfMemoryError("heap")))
    test(
      "a block that cannot be read is released, and the peer gets the reason and no later part:" +
        s" $cause"
    ) {
      val block = new Block(Some(cause))
      val sending = new TestSend(block)
      Seq(0, 10, 20).foreach(sending.send)
      sending.channel.runPendingTasks()
      assert(block.opened === Seq(100) && block.open === 0 && sending.underway.get === 0)
      assert(sending.ends.sorted === Seq("0 refused", "10 refused", "20 refused"))
      val response = sending.channel.readOutbound[StreamFailure]()
      assert(response.streamId === "7/0" && response.error === cause.toString)
      assert(sending.channel.readOutbound[AnyRef]() === null && sending.channel.isOpen)
    }

  test(
    "a part that cannot be written releases its block, and ends the connection and everything" +
      " that waits for it"
  ) {
    val block = new Block
    val sending = new TestSend(block)
    sending.send(0)
    sending.channel.runPendingTasks()
    sending.memory.isExhausted = true
    Seq(10, 20).foreach(sending.send)
    sending.channel.runPendingTasks()
    assert(block.open === 0 && sending.underway.get === 0 && !sending.channel.isOpen)
    assert(sending.ends === Seq("0 None", "10 None", "20 None"))
  }

  test("an Error between the lookup of a part and its write releases the block") {
    val block = new Block(unsendable = Some(new OutOfMemoryError("heap")))
    val sending = new TestSend(block)
    Seq(0, 10).foreach(sending.send)
    sending.channel.runPendingTasks()
    assert(block.open === 0 && sending.underway.get === 0 && !sending.channel.isOpen)
    assert(sending.ends === Seq("0 None", "10 None"))
  }

  test("messages that cannot be written end the connection, and their senders learn it") {
    val queue = new MessageQueue
    val channel = new EmbeddedChannel
    val memory = new Memory
    var ends = Vector.empty[Option[Long]]
    def add(): Unit = queue.add(MessagePart(0, Array[Byte](1), 0, 1), ends :+= _)
    channel.config.setAllocator(memory)
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => queue.end())
    memory.isExhausted = true
    Seq(1, 2).foreach(_ => add())
    queue.onOpened(channel)
    channel.runPendingTasks()
    assert(ends === Seq(None, None) && !channel.isOpen)
    add()
    assert(ends.size === 3)
  }
}
