// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.{ServerSocketChannel, SocketChannel}
import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.{FileTime, PosixFilePermissions}
import java.util.concurrent.TimeUnit

import org.scalatest.funsuite.AnyFunSuite

class SocketDirectorySpec extends AnyFunSuite {
  private def listen(directory: Path): ServerSocketChannel =
    ServerSocketChannel
      .open(StandardProtocolFamily.UNIX)
      .bind(UnixDomainSocketAddress.of(directory.resolve(SocketDirectory.SocketName)))

  private def growOld(directory: Path): Unit =
    Files.setLastModifiedTime(
      directory,
      FileTime.fromMillis(System.currentTimeMillis - 3600 * 1000)
    )

  test("only old sockets without a listener are removed") {
    val parent = Files.createTempDirectory("swept")
    val Seq(dead, alive, young, foreign) = Seq.fill(4)(SocketDirectory.create(parent))
    listen(dead).close()
    val listener = listen(alive)
    listen(young).close()
    Seq(dead, alive, foreign).foreach(growOld)
    try {
      SocketDirectory.sweep(SocketDirectory.create(parent))
      assert(!Files.exists(dead))
      Seq(alive, young, foreign).foreach(directory => assert(Files.exists(directory)))
    } finally listener.close()
  }

  test("links, files, and directories that others can write to or own are kept") {
    val (parent, elsewhere) =
      (Files.createTempDirectory("swept"), Files.createTempDirectory("elsewhere"))
    listen(elsewhere).close()
    Files.createSymbolicLink(parent.resolve("sparkdl-link"), elsewhere)
    val Seq(open, file, link, others) = Seq.fill(4)(SocketDirectory.create(parent))
    listen(open).close()
    Files.setPosixFilePermissions(open, PosixFilePermissions.fromString("rwxrwxrwx"))
    Files.createFile(file.resolve(SocketDirectory.SocketName))
    Files.createSymbolicLink(
      link.resolve(SocketDirectory.SocketName),
      elsewhere.resolve(SocketDirectory.SocketName)
    )
    listen(others).close()
    val isRoot = Files.getAttribute(others, "unix:uid") == 0
    if (isRoot) Files.setAttribute(others, "unix:uid", 4711)
    Seq(elsewhere, open, file, link, others).foreach(growOld)
    SocketDirectory.sweep(SocketDirectory.create(parent))
    (Seq(elsewhere, open, file, link) ++ (if (isRoot) Some(others) else None)).foreach {
      directory =>
        assert(Files.list(directory).count() === 1, s"$directory was swept")
    }
    assert(Files.isSymbolicLink(parent.resolve("sparkdl-link")))
  }

  test("a socket whose process is stopped delays nothing") {
    val stopped = SocketDirectory.create(Files.createTempDirectory("swept"))
    val address = UnixDomainSocketAddress.of(stopped.resolve(SocketDirectory.SocketName))
    val listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX).bind(address, 1)
    val visitors = Seq.fill(10)(SocketChannel.open(StandardProtocolFamily.UNIX))
    visitors.foreach(_.configureBlocking(false))
    val full = visitors.exists(visitor => scala.util.Try(visitor.connect(address)).isFailure)
    assert(full, "the test needs a full queue of connections")
    growOld(stopped)
    val sweeping =
      new Thread(() => SocketDirectory.sweep(SocketDirectory.create(stopped.getParent)))
    sweeping.setDaemon(true)
    sweeping.start()
    try {
      sweeping.join(TimeUnit.SECONDS.toMillis(10))
      assert(!sweeping.isAlive)
      assert(Files.exists(stopped.resolve(SocketDirectory.SocketName)))
    } finally {
      visitors.foreach(_.close())
      listener.close()
    }
  }

  test("a temporary directory with a long name is not used for sockets") {
    assert(SocketDirectory.parent("/var/tmp") === Paths.get("/var/tmp"))
    assert(SocketDirectory.parent("/var/" + "x" * 100) === Paths.get("/tmp"))
  }
}
