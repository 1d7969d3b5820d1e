package sparkdl.comm.transport

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentLinkedQueue, TimeUnit}

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

class SlowStartSpec extends AnyFunSuite {
  private object Nothing extends BlockSink {
    override def bytes: Long = 0
    override def restart(): Unit = ()
    override def write(from: ByteBuffer): Unit = ()
  }

  /** Blocks whose fetches end at once. `fetched`: when each began. */
  private final class Instant extends Blocks {
    val fetched = new ConcurrentLinkedQueue[(String, Long)]

    override def fetchAbove: Long = 64 << 10
    override def here: BlockServer = BlockServer("here", 1, "0")
    override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = ()
    override def retire(job: Long, name: String, over: () => Boolean): Boolean = true
    override def status(job: Long, name: String): Option[(Long, Long)] = None
    override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] = {
      fetched.add((name, System.nanoTime))
      CompletableFuture.completedFuture(null)
    }
  }

  test("start-ups from one server come one after another, those from several at the same time") {
    val (blocks, startup) = (new Instant, TimeUnit.MILLISECONDS.toNanos(60))
    val slow = new SlowStart(blocks, startup)
    val begin = System.nanoTime
    val fetches = for (name <- Seq("first", "second", "third"); server <- Seq("a", "b"))
      yield slow.fetch(BlockServer(server, 1, server), 7, s"$name of $server", Nothing)
    fetches.foreach(_.get(10, TimeUnit.SECONDS))
    val when = blocks.fetched.asScala.toMap
    for ((name, number) <- Seq("first", "second", "third").zipWithIndex; server <- Seq("a", "b"))
      assert(when(s"$name of $server") >= begin + (number + 1) * startup, s"$name of $server")
    assert(when("second of a") > when("first of b"))
  }

  test("blocks of this executor come at once, and without the property all do") {
    val blocks = new Instant
    new SlowStart(blocks, TimeUnit.HOURS.toNanos(1)).fetch(blocks.here, 7, "own", Nothing).get(10, TimeUnit.SECONDS)
    assert(SlowStart.wrap(blocks) eq blocks)
  }
}
