package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger

import io.netty.buffer.{AbstractByteBufAllocator, ByteBuf, UnpooledByteBufAllocator}
import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.buffer.{ManagedBuffer, NioManagedBuffer}
import org.apache.spark.network.protocol.StreamFailure

import sparkdl.comm.transport.{Chunk, ChunkPeer, ChunkSource, MessagePart}

/** Answers whose blocks cannot be read, and messages that cannot be written. */
class AskedChunkSpec extends AnyFunSuite {

  /** Memory as a JVM has it: none is left once it is spent. */
  private final class Memory extends AbstractByteBufAllocator {
    private val all = UnpooledByteBufAllocator.DEFAULT
    var spent = false
    override def newHeapBuffer(bytes: Int, most: Int): ByteBuf = all.heapBuffer(bytes, most)
    override def newDirectBuffer(bytes: Int, most: Int): ByteBuf =
      if (spent) throw new OutOfMemoryError("direct memory") else all.directBuffer(bytes, most)
    override def isDirectBufferPooled: Boolean = false
  }

  /** One block, which counts those that have it open. Reading it throws what is `broken`. */
  private final class Block(broken: Option[Throwable] = None) extends ChunkSource {
    var opened = Vector.empty[Long]
    var open = 0

    override def open(chunk: Chunk): Option[ManagedBuffer] = {
      opened :+= chunk.offset
      open += 1
      Some(new NioManagedBuffer(ByteBuffer.allocate(chunk.length)) {
        override def convertToNetty(): AnyRef = {
          broken.foreach(throw _)
          super.convertToNetty()
        }
        override def release(): ManagedBuffer = {
          open -= 1
          this
        }
      })
    }
  }

  private final class Sending(block: Block) {
    val memory = new Memory
    val channel = new EmbeddedChannel
    val underway = new AtomicInteger
    var ends = Vector.empty[String]
    private val unconfirmed = new Unconfirmed
    private val answer =
      new AskedChunk(7, Chunk(1, "block", 100, 30), ChunkPeer("there", 1, "1"), block, channel, unconfirmed, underway)
    channel.config.setAllocator(memory)
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => unconfirmed.end())

    def send(offset: Int): Unit =
      answer.send(offset, 10)(arrived => ends :+= s"$offset $arrived", () => ends :+= s"$offset refused")
  }

  test("a block is opened by the connection's own thread, whoever sends, and released when its part is sent") {
    val block = new Block
    val sending = new Sending(block)
    sending.send(10)
    assert(block.opened.isEmpty && sending.underway.get === 1)
    sending.channel.runPendingTasks()
    assert(block.opened === Seq(110) && block.open === 0 && sending.underway.get === 0 && sending.ends.isEmpty)
  }

  for (cause <- Seq(new IOException("a bad sector"), new OutOfMemoryError("heap")))
    test(s"a block that cannot be read is released, the peer is told why, and gets no later part: $cause") {
      val block = new Block(Some(cause))
      val sending = new Sending(block)
      Seq(0, 10, 20).foreach(sending.send)
      sending.channel.runPendingTasks()
      assert(block.opened === Seq(100) && block.open === 0 && sending.underway.get === 0)
      assert(sending.ends.sorted === Seq("0 refused", "10 refused", "20 refused"))
      val told = sending.channel.readOutbound[StreamFailure]()
      assert(told.streamId === "7/0" && told.error === cause.toString)
      assert(sending.channel.readOutbound[AnyRef]() === null && sending.channel.isOpen)
    }

  test("a part that cannot be written releases its block, and ends the connection with all that waits for it") {
    val block = new Block
    val sending = new Sending(block)
    sending.send(0)
    sending.channel.runPendingTasks()
    sending.memory.spent = true
    Seq(10, 20).foreach(sending.send)
    sending.channel.runPendingTasks()
    assert(block.open === 0 && sending.underway.get === 0 && !sending.channel.isOpen)
    assert(sending.ends === Seq("0 None", "10 None", "20 None"))
  }

  test("messages that cannot be written end the connection, and whoever sent them learns it") {
    val queue = new MessageQueue
    val channel = new EmbeddedChannel
    val memory = new Memory
    var ends = Vector.empty[Option[Long]]
    def add(): Unit = queue.add(MessagePart(0, Array[Byte](1), 0, 1), ends :+= _)
    channel.config.setAllocator(memory)
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => queue.end())
    memory.spent = true
    Seq(1, 2).foreach(_ => add())
    queue.opened(channel)
    channel.runPendingTasks()
    assert(ends === Seq(None, None) && !channel.isOpen)
    add()
    assert(ends.size === 3)
  }
}
