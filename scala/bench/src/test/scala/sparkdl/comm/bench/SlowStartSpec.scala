package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.ServiceLoader
import java.util.concurrent.{CompletableFuture, ConcurrentLinkedQueue, TimeUnit}

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.transport._

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
    val slow = new SlowStartBlocks(blocks, startup)
    val begin = System.nanoTime
    val fetches = for (name <- Seq("first", "second", "third"); server <- Seq("a", "b"))
      yield slow.fetch(BlockServer(server, 1, server), 7, s"$name of $server", Nothing)
    fetches.foreach(_.get(10, TimeUnit.SECONDS))
    val when = blocks.fetched.asScala.toMap
    for ((name, number) <- Seq("first", "second", "third").zipWithIndex; server <- Seq("a", "b"))
      assert(when(s"$name of $server") >= begin + (number + 1) * startup, s"$name of $server")
    assert(when("second of a") > when("first of b"))
  }

  private final class Executor(override val blocks: Blocks) extends Transport {
    override def host: String = "here"
    override def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane =
      throw new UnsupportedOperationException
  }

  test("the plugin finds it, and it does nothing without the property") {
    val wrappers = ServiceLoader.load(classOf[TransportWrapper]).asScala.toSeq
    assert(wrappers.map(_.getClass) === Seq(classOf[SlowStart]))
    val executor = new Executor(new Instant)
    assert(wrappers.head.wrap(executor) eq executor)
    System.setProperty(SlowStart.Property, "0.5")
    try assert(wrappers.head.wrap(executor).blocks.isInstanceOf[SlowStartBlocks])
    finally System.clearProperty(SlowStart.Property)
  }

  test("blocks of this executor come at once") {
    val blocks = new Instant
    new SlowStartBlocks(blocks, TimeUnit.HOURS.toNanos(1)).fetch(blocks.here, 7, "own", Nothing).get(10, TimeUnit.SECONDS)
  }
}
