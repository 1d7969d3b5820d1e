package sparkdl.comm.flow

import java.nio.ByteBuffer
import java.util.concurrent.{ExecutionException, TimeUnit}

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ManualClock
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

class FetchesSpec extends AnyFunSuite {

  /** A chunk that was asked for, and what is to become of it. */
  private final class Asked(val chunk: Chunk, into: ChunkTarget, val deadline: Long, done: Option[ChunkFailure] => Unit)
      extends ChunkFetch {
    def arrive(bytes: Array[Byte]): Unit = {
      into.write(ByteBuffer.wrap(bytes))
      done(None)
    }
    def fail(cause: ChunkFailure): Unit = done(Some(cause))
    override def cancel(): Unit = done(Some(new ChunkFailure.Cancelled("cancelled")))
  }

  private final class Held extends Chunks {
    var asked = Vector.empty[Asked]
    override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
        done: Option[ChunkFailure] => Unit
    ): ChunkFetch = {
      asked :+= new Asked(chunk, into, deadline, done)
      asked.last
    }
  }

  private val memory = new Array[Byte](10)
  private val clock = new ManualClock
  private val into: BlockTarget = (offset, length) => {
    val rest = ByteBuffer.wrap(memory, offset.toInt, length)
    from => rest.put(from)
  }

  private def block(bytes: Long): RemoteBlock = RemoteBlock(ChunkPeer("there", 1, "1"), 7, "block", bytes)

  test("a block is asked for at once, and done when it is here") {
    val held = new Held
    val fetches = new Fetches(held, clock)
    clock.advance(3)
    val now = TimeUnit.SECONDS.toNanos(3)
    val fetch = fetches.fetch(block(10), patience = 5, into)
    assert(held.asked.map(_.chunk) === Seq(Chunk(7, "block", 0, 10)) && held.asked.head.deadline === now + 5)
    assert(fetch.askedNanos === now && !fetch.done.isDone && fetches.pending === 1)
    held.asked.head.arrive(Array.tabulate(10)(_.toByte))
    assert(fetch.done.isDone && fetches.pending === 0)
    assert(memory.toSeq === (0 until 10))
  }

  test("a block that is larger than a chunk can be comes in several") {
    val held = new Held
    val fetches = new Fetches(held, clock)
    val bytes = (5L << 30) + 1
    val fetch = fetches.fetch(block(bytes), 1, (_, _) => _ => ())
    val chunks = held.asked.map(_.chunk)
    assert(chunks.map(_.offset) === chunks.scanLeft(0L)(_ + _.length).init && chunks.map(_.length.toLong).sum === bytes)
    held.asked.tail.foreach(_.arrive(Array.empty))
    assert(!fetch.done.isDone && fetches.pending === 1)
    held.asked.head.arrive(Array.empty)
    assert(fetch.done.isDone && fetches.pending === 0)
  }

  test("a block fails with the cause, and one that is cancelled does too") {
    val held = new Held
    val fetches = new Fetches(held, clock)
    val Seq(bad, unwanted) = Seq.fill(2)(fetches.fetch(block(10), 1, into))
    held.asked.head.fail(new ChunkFailure.NotServed("not here"))
    unwanted.cancel()
    unwanted.cancel() // twice is as once
    assert(intercept[ExecutionException](bad.done.get()).getCause.getMessage === "not here")
    assert(intercept[ExecutionException](unwanted.done.get()).getCause.isInstanceOf[ChunkFailure.Cancelled])
    assert(fetches.pending === 0)
  }
}
