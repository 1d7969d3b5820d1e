package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.ServiceLoader
import java.util.concurrent.CompletableFuture

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Clock
import sparkdl.comm.transport._

class SlowStartSpec extends AnyFunSuite {
  private object Nothing extends BlockSink {
    override def maxBytes: Long = 0
    override def restart(): Unit = ()
    override def write(from: ByteBuffer): Unit = ()
  }

  /** Keeps what is to run later: how long after now, and what. */
  private final class Later extends Clock {
    var tasks = Vector.empty[(Long, () => Unit)]
    override def nanoTime: Long = 1000
    override def await(done: CompletableFuture[_], deadline: Long): Unit = throw new UnsupportedOperationException
    override def after(nanos: Long)(task: => Unit): Unit = tasks :+= ((nanos, () => task))
  }

  /** Blocks whose fetches end at once. */
  private final class Instant extends Blocks {
    var fetched = Vector.empty[String]

    override def inlineThreshold: Long = 64 << 10
    override def here: BlockServer = BlockServer("here", 1, "0")
    override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = ()
    override def retire(job: Long, name: String, over: () => Boolean): Boolean = true
    override def status(job: Long, name: String): Option[(Long, Long)] = None
    override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] = {
      fetched :+= name
      CompletableFuture.completedFuture(null)
    }
  }

  test("start-ups from one server come one after another, those from several at the same time") {
    val (blocks, clock) = (new Instant, new Later)
    val slow = new SlowStartBlocks(blocks, startupNanos = 60, clock)
    val fetches = for (name <- Seq("first", "second", "third"); server <- Seq("a", "b"))
      yield slow.fetch(BlockServer(server, 1, server), 7, s"$name of $server", Nothing)
    assert(clock.tasks.map(_._1) === Seq(60, 60, 120, 120, 180, 180))
    assert(blocks.fetched.isEmpty)
    clock.tasks.foreach(_._2.apply())
    assert(blocks.fetched === (for (name <- Seq("first", "second", "third"); server <- Seq("a", "b"))
      yield s"$name of $server"))
    assert(fetches.forall(_.isDone))
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
    assert(new SlowStartBlocks(blocks, 60, new Later).fetch(blocks.here, 7, "own", Nothing).isDone)
  }
}
