// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.ServiceLoader
import java.util.concurrent.CompletableFuture

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Clock
import sparkdl.comm.transport._

class SlowStartSpec extends AnyFunSuite {

  /** Clock that keeps delayed tasks, each with its delay. */
  private final class Later extends Clock {
    var tasks = Vector.empty[(Long, () => Unit)]
    override def nanoTime: Long = 1000
    override def await(done: CompletableFuture[_], deadline: Long): Unit =
      throw new UnsupportedOperationException
    override def after(nanos: Long)(task: => Unit): Unit = tasks :+= ((nanos, () => task))
  }

  /** Network whose fetches end at once. */
  private final class Instant extends ChunkNetwork {
    var fetched = Vector.empty[(String, Long)]
    override def address: ChunkPeer = ChunkPeer("here", 1, "1")
    override def sending: Int = 0
    override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit =
      done(Some(0))
    override def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void] =
      CompletableFuture.completedFuture[Void](null)
    override def close(): Unit = ()
    override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
        done: Option[ChunkFailure] => Unit
    ): ChunkFetch = {
      fetched :+= ((s"${chunk.block} of ${from.host}", chunk.offset))
      done(None)
      () => ()
    }
  }

  private object Dropped extends ChunkTarget {
    override def write(from: ByteBuffer): Unit = ()
  }

  private final class Fetched(
      network: ChunkNetwork,
      server: String,
      block: String,
      offset: Long = 0
  ) {
    var ends = Vector.empty[Option[ChunkFailure]]
    val fetch: ChunkFetch =
      network.fetch(ChunkPeer(server, 1, "1"), Chunk(7, block, offset, 10), Dropped, 0)(ends :+= _)
  }

  test("start-ups of one server are sequential, start-ups of several servers parallel") {
    val (network, clock) = (new Instant, new Later)
    val slow = new SlowStartNetwork(network, startupNanos = 60, clock)
    val names = for (name <- Seq("first", "second", "third"); server <- Seq("a", "b"))
      yield (name, server)
    val fetches = names.map { case (name, server) => new Fetched(slow, server, name) }
    assert(clock.tasks.map(_._1) === Seq(60, 60, 120, 120, 180, 180))
    assert(network.fetched.isEmpty)
    clock.tasks.foreach(_._2.apply())
    assert(network.fetched === names.map { case (name, server) => (s"$name of $server", 0L) })
    assert(fetches.forall(_.ends == Vector(None)))
  }

  test("later chunks of a block wait for the block's start-up and have none themselves") {
    val (network, clock) = (new Instant, new Later)
    val slow = new SlowStartNetwork(network, startupNanos = 60, clock)
    Seq(0L, 10L).foreach(new Fetched(slow, "a", "block", _))
    assert(network.fetched.isEmpty && clock.tasks.size === 1)
    clock.tasks.foreach(_._2.apply())
    new Fetched(slow, "a", "block", 20)
    assert(network.fetched.map(_._2).sorted === Seq(0, 10, 20) && clock.tasks.size === 1)
  }

  test("a fetch that is cancelled before it starts requests nothing") {
    val (network, clock) = (new Instant, new Later)
    val fetched = new Fetched(new SlowStartNetwork(network, startupNanos = 60, clock), "a", "block")
    fetched.fetch.cancel()
    clock.tasks.foreach(_._2.apply())
    assert(network.fetched.isEmpty)
    assert(fetched.ends.map(_.map(_.getClass)) === Vector(Some(classOf[ChunkFailure.Cancelled])))
  }

  private object Unused extends Blocks {
    override def inlineThreshold: Long = 64 << 10
    override def executorId: String = "0"
    override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = ()
    override def retire(job: Long, name: String, over: () => Boolean): Boolean = true
    override def status(job: Long, name: String): Option[(Long, Long)] = None
    override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit = ()
  }

  private object Executor extends Transport {
    override def host: String = "here"
    override def blocks: Blocks = Unused
    override def openNetwork(
        firstPort: Int,
        portCount: Int,
        receiver: PeerMessageReceiver
    ): ChunkNetwork = new Instant
  }

  private object Deaf extends PeerMessageReceiver {
    override def onRequest(answer: ChunkAnswer): Unit = ()
    override def onMessage(message: ByteBuffer): Unit = ()
    override def onPeerLost(peer: ChunkPeer): Unit = ()
  }

  test("the plugin loads the wrapper, which does nothing without the property") {
    val wrappers = ServiceLoader.load(classOf[TransportWrapper]).asScala.toSeq
    assert(wrappers.map(_.getClass) === Seq(classOf[SlowStart]))
    assert(wrappers.head.wrap(Executor) eq Executor)
    System.setProperty(SlowStart.Property, "0.5")
    try {
      val wrapped = wrappers.head.wrap(Executor)
      assert(wrapped.openNetwork(0, 1, Deaf).isInstanceOf[SlowStartNetwork])
      assert(wrapped.blocks.inlineThreshold === 0)
    } finally System.clearProperty(SlowStart.Property)
  }
}
