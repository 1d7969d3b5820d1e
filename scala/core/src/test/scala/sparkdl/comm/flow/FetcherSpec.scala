// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import java.nio.ByteBuffer
import java.util.concurrent.{ExecutionException, TimeUnit}

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ManualClock
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

class FetcherSpec extends AnyFunSuite {

  /** Requested chunk, which a test completes or fails. */
  private final class TestRequest(
      val chunk: Chunk,
      into: ChunkTarget,
      val deadline: Long,
      done: Option[ChunkFailure] => Unit
  ) extends ChunkFetch {
    def arrive(bytes: Array[Byte]): Unit = {
      into.write(ByteBuffer.wrap(bytes))
      done(None)
    }
    def fail(cause: ChunkFailure): Unit = done(Some(cause))
    override def cancel(): Unit = done(Some(new ChunkFailure.Cancelled("cancelled")))
  }

  private final class RecordingChunks extends Chunks {
    var requests = Vector.empty[TestRequest]
    override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
        done: Option[ChunkFailure] => Unit
    ): ChunkFetch = {
      requests :+= new TestRequest(chunk, into, deadline, done)
      requests.last
    }
  }

  private val memory = new Array[Byte](10)
  private val clock = new ManualClock
  private val into: BlockTarget = (offset, length) => {
    val rest = ByteBuffer.wrap(memory, offset.toInt, length)
    from => rest.put(from)
  }

  private def block(bytes: Long): RemoteBlock =
    RemoteBlock(ChunkPeer("there", 1, "1"), 7, "block", bytes)

  test("a block is requested at once, and complete when it has arrived") {
    val network = new RecordingChunks
    val fetches = new Fetcher(network, clock)
    clock.advance(3)
    val now = TimeUnit.SECONDS.toNanos(3)
    val fetch = fetches.fetch(block(10), patienceNanos = 5, into)
    assert(
      network.requests.map(_.chunk) === Seq(Chunk(7, "block", 0, 10)) && network.requests.head
        .deadline === now + 5
    )
    assert(fetch.askedNanos === now && !fetch.done.isDone && fetches.pending === 1)
    network.requests.head.arrive(Array.tabulate(10)(_.toByte))
    assert(fetch.done.isDone && fetches.pending === 0)
    assert(memory.toSeq === (0 until 10))
  }

  test("a block larger than the largest chunk is fetched in several chunks") {
    val network = new RecordingChunks
    val fetches = new Fetcher(network, clock)
    val bytes = (5L << 30) + 1
    val fetch = fetches.fetch(block(bytes), 1, (_, _) => _ => ())
    val chunks = network.requests.map(_.chunk)
    assert(chunks.map(_.offset) === chunks.scanLeft(0L)(_ + _.length).init && chunks.map(
      _.length.toLong
    ).sum === bytes)
    network.requests.tail.foreach(_.arrive(Array.empty))
    assert(!fetch.done.isDone && fetches.pending === 1)
    network.requests.head.arrive(Array.empty)
    assert(fetch.done.isDone && fetches.pending === 0)
  }

  test("a failed and a cancelled block fail with their causes") {
    val network = new RecordingChunks
    val fetches = new Fetcher(network, clock)
    val Seq(bad, unwanted) = Seq.fill(2)(fetches.fetch(block(10), 1, into))
    network.requests.head.fail(new ChunkFailure.NotServed("not here"))
    unwanted.cancel()
    unwanted.cancel() // a second call does nothing
    assert(intercept[ExecutionException](bad.done.get()).getCause.getMessage === "not here")
    assert(intercept[ExecutionException](unwanted.done.get()).getCause.isInstanceOf[
      ChunkFailure.Cancelled
    ])
    assert(fetches.pending === 0)
  }
}
